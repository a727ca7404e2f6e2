// Package storetest checks implementations of [tierlock.Store], and injects
// faults into them.
//
// [Run] is the conformance suite that the library's own stores pass. A store
// of your own passes it from a test such as
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness {
//			addr := startServer(t) // or one that is shared by all tests
//			return storetest.Harness{Open: func(t *testing.T) tierlock.Store {
//				s, err := mystore.Open(addr)
//				if err != nil {
//					t.Fatal(err)
//				}
//				t.Cleanup(s.Close)
//				return s
//			}}
//		})
//	}
//
// Every check works through two independent store values over one backend, as
// two processes would, so that nothing that only one client knows can make it
// pass. [RunInBubble] runs the same checks on fake time, for stores that need
// no network.
//
// [RunChain] is for stores that are part of a chain of several, [RunArbiter] for the
// one that decides which mode of the chain is in force.
//
// What the suites do not show: what a store does while its server is down,
// restarts or fails over, and what happens between more than two clients of a
// partitioned network. These need the real server; the suites need a healthy
// one. A store that passes keeps the contract as far as one healthy backend
// can show it.
//
// [WithFaults] wraps a store so that its calls fail as calls over a network
// do: without effect, after the effect, or with the effect later.
package storetest
