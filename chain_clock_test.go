package tierlock_test

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// A process that alone has been cut off from Redis for long comes back just after
// the clock there was stepped forward past another's lease. It knew the clock once,
// and does not take the time that it has not seen for what explains the step.
func TestChainStepInALongSilence(t *testing.T) {
	for _, c := range []struct{ ttl, silent, step time.Duration }{
		{tierlock.MinExclusiveTTL, 15 * time.Second, 400 * time.Millisecond},
		{tierlock.MinExclusiveTTL, time.Minute, 500 * time.Millisecond},
		{tierlock.MinExclusiveTTL, 2 * time.Minute, 1200 * time.Millisecond},
		{30 * time.Second, 20 * time.Minute, 10 * time.Second},
	} {
		t.Run(c.silent.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *chainWorld) {
				a, b, third := w.start(), w.start(), w.start()
				chainTakes(t, time.Minute, tierlock.Redis, a, b, third)
				redisAway(b)
				time.Sleep(c.silent)
				k, err := a.TryLock(bg, "x", "k", tierlock.TTL(c.ttl))
				if err != nil {
					t.Fatal(err)
				}
				redisAway(a)
				w.redis.Step(c.step)
				redisBack(b)
				chain := b.Status().Chain
				asked := notTwice(t, k, b)
				if now := b.Status().Chain; asked == 0 || now.Epoch != chain.Epoch || now.RedisDown {
					t.Errorf("asked %d times; %+v has become %+v", asked, chain, now)
				}
				redisBack(a)
				chainTakes(t, 2*time.Minute, tierlock.Redis, a, b, third)
			})
		})
	}
}

// notTwice has l ask for x/k, which k holds, until k is believed in no more.
func notTwice(t *testing.T, k *tierlock.Lock, l *chainProc) (asked int) {
	t.Helper()
	for ; k.Err() == nil; asked++ {
		if n, err := l.TryLock(bg, "x", "k"); err == nil {
			t.Fatalf("%v was given while %v is believed in", n.Token(), k.Token())
		}
		time.Sleep(5 * time.Millisecond)
	}
	return asked
}

// A short step is one, too: what is left of a lease of three seconds may be much less
// than what a call of somebody may take whose own lease is long.
func TestChainShortSteps(t *testing.T) {
	for _, step := range []time.Duration{
		100 * time.Millisecond, 200 * time.Millisecond, 299 * time.Millisecond, 310 * time.Millisecond, 480 * time.Millisecond, 900 * time.Millisecond,
	} {
		t.Run(step.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *chainWorld) {
				a, b := w.start(), w.start()
				chainTakes(t, time.Minute, tierlock.Redis, a, b)
				k, err := a.TryLock(bg, "x", "k", tierlock.TTL(tierlock.MinExclusiveTTL))
				if err != nil {
					t.Fatal(err)
				}
				redisAway(a)
				w.redis.Step(step)
				if notTwice(t, k, b) == 0 {
					t.Error("nobody has asked")
				}
				redisBack(a)
				chainTakes(t, 2*time.Minute, tierlock.Redis, a, b)
			})
		})
	}
}

// A clock that is slewed by a hundredth refuses nothing. One that gains more, as
// some daemons have it by default, is taken for one that was stepped; all is as
// before some 80 s after it is right again.
func TestChainSlewedClock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start()
		chainTakes(t, time.Minute, tierlock.Redis, a)
		// refused is when the first and the last were since the slew began.
		refused := func(ppm int64, lasts time.Duration) (first, last time.Duration) {
			w.redis.SetClock(0, ppm)
			slewed := true
			for start := time.Now(); time.Since(start) < lasts+2*time.Minute; time.Sleep(250 * time.Millisecond) {
				if slewed && time.Since(start) >= lasts {
					w.redis.SetClock(0, 0)
					slewed = false
				}
				k, err := a.TryLock(bg, "x", "k")
				if err == nil {
					k.Unlock()
					continue
				}
				wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
				if last = time.Since(start); first == 0 {
					first = last
				}
			}
			return first, last
		}
		if first, _ := refused(10_000, 2*time.Minute); first != 0 {
			t.Errorf("refused after %v of a slew by a hundredth", first)
		}
		if first, last := refused(83_333, 24*time.Second); first == 0 || last > 24*time.Second+contract.TripMost+time.Second {
			t.Errorf("refused from %v to %v", first, last)
		}
	})
}
