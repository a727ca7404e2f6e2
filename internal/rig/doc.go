// Package rig is the test rig: real servers on free ports, a TCP proxy that
// injects faults, helper processes, and leak checks. Only tests and benchmarks
// import it; besides the standard library it uses MySQL's driver, to log in to
// MariaDB.
//
// Most tests want two lines:
//
//	srv := rig.Redis(t)               // a real redis-server, stopped at cleanup
//	proxy := rig.NewProxy(t, srv.Addr) // dial proxy.Addr; proxy.BlackHole(), proxy.Pass(), …
//
// [StartSentinel] and [StartCluster] start whole deployments, whose nodes can be
// killed, paused and moved about in the same way. [RedisTLS], [RedisWithClock] and
// [NewCommandProxy] are for deployments that are special in one point. [MariaDB]
// starts a mariadbd, which the same proxy goes in front of.
//
// A package whose tests use [Spawn] calls [Main] from its TestMain. A command that
// is no test, such as a benchmark, calls [Program] instead.
//
// Guaranteed: everything started here is ended by its own process id at the
// latest when the test ends, and on Linux also when the test process itself is
// killed. Nothing listens or dials beyond the loopback interface. Ports lie
// outside the kernel's range for outgoing connections wherever that range
// leaves room, so that a stopped server can come back on its port, and so that
// dialling a port where nobody listens is refused rather than connected to
// itself.
//
// Not guaranteed: on systems other than Linux children may outlive a killed
// test process; where there are no Unix signals Pause fails the test. The
// proxy copies bytes through user space and works on connections, not packets:
// its kernel acknowledges what a peer sends, and the three-way handshake of a
// new connection always succeeds unless the proxy refuses.
//
// Functions that take a [testing.TB], and methods of what they return, fail the
// test rather than return an error, except where an error is in their
// signature. Failing means Fatalf, so call them from the test's own goroutine;
// where a method may be called from any, a failure fails the test and ends that
// goroutine.
package rig
