package tierlock_test

import (
	"testing"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
)

// BenchmarkUncontended is what the Locker itself costs: a lock and its unlock, over a
// store that takes next to no time.
func BenchmarkUncontended(b *testing.B) {
	l, err := tierlock.New(tierlock.Config{App: "bench", Namespace: "ns", Stores: []tierlock.Store{localstore.New(localstore.Options{})},
		Resources: []tierlock.Resource{{Name: "r"}}})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close(bg)
	b.ReportAllocs()
	for b.Loop() {
		k, err := l.Lock(bg, "r", "1")
		if err != nil {
			b.Fatal(err)
		}
		if err := k.Unlock(); err != nil {
			b.Fatal(err)
		}
	}
}
