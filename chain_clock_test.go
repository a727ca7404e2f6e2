package tierlock_test

import (
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// A process that alone has been cut off from Redis for long comes back just after
// the clock there was stepped forward past another's lease. It knew the clock once,
// and does not take the time that it has not seen for what explains the step.
func TestChainStepInALongSilence(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b, c := w.start(), w.start(), w.start()
		chainTakes(t, time.Minute, tierlock.Redis, a, b, c)
		redisAway(b)
		time.Sleep(20 * time.Minute)
		k, err := a.TryLock(bg, "x", "k")
		if err != nil {
			t.Fatal(err)
		}
		redisAway(a)
		w.redis.Step(10 * time.Second)
		redisBack(b)
		chain, asked := b.Status().Chain, 0
		for ; k.Err() == nil; asked++ {
			if n, err := b.TryLock(bg, "x", "k"); err == nil {
				t.Fatalf("%v was given while %v is believed in", n.Token(), k.Token())
			}
			time.Sleep(20 * time.Millisecond)
		}
		if now := b.Status().Chain; asked == 0 || now.Epoch != chain.Epoch || now.RedisDown {
			t.Errorf("asked %d times; %+v has become %+v", asked, chain, now)
		}
		redisBack(a)
		chainTakes(t, 2*time.Minute, tierlock.Redis, a, b, c)
	})
}
