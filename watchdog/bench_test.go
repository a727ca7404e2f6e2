package watchdog_test

import (
	"context"
	"testing"

	"github.com/tierlock/tierlock/watchdog"
)

// What each lock and unlock pays.
func BenchmarkWatchStop(b *testing.B) {
	for _, bc := range []struct {
		name   string
		others int
	}{{"alone", 0}, {"beside 20000", 20000}} {
		b.Run(bc.name, func(b *testing.B) {
			w := watchdog.New(watchdog.Config{Renew: func(_ context.Context, batch []watchdog.Renewal) []error {
				return make([]error, len(batch))
			}})
			defer w.Close()
			for range bc.others {
				w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec})
			}
			for b.Loop() {
				l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 30 * sec})
				if _, ended := l.Stop(b.Context()); ended {
					b.Fatal("ended")
				}
			}
		})
	}
}

func BenchmarkLeft(b *testing.B) {
	w := watchdog.New(watchdog.Config{Renew: func(_ context.Context, batch []watchdog.Renewal) []error {
		return make([]error, len(batch))
	}})
	defer w.Close()
	l := w.Watch(watchdog.Spec{Sent: watchdog.Now(), TTL: 60 * sec})
	for b.Loop() {
		if l.Left() == 0 {
			b.Fatal("over")
		}
	}
}
