// Package tests holds the scenarios that need real servers and several
// processes: public failure reports of other lock libraries, reproduced on
// this one. It has no code of its own to import; it is a module apart so that
// what only tests need stays out of the library's go.mod.
//
// Each test names in its comment the scenarios that it covers, and README.md
// says for each scenario which test that is. A test starts what it needs, a
// redis-server included, and ends it again:
//
//	go test -race ./...
//
// takes some minutes; with -short the loops that look for rare races take
// seconds instead of a minute.
//
// What can be shown with the in-process store and a fake clock is in the root
// package's own tests.
package tests
