//go:build race

package degrade_test

// The searches are one goroutine each. Under the race detector, ten times slower,
// only the small ones are made.
const raceOn = true
