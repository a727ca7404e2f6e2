package tests_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

// Scenario 1, 3 and 29, with a second store: Redis is killed under holds of an
// exclusive resource. They live on in MySQL with their lease and their fence,
// nobody else gets their keys meanwhile, new locks come from MySQL after a pause,
// and when Redis is back, empty, all goes back there.
func TestHoldsSurviveASwitchAndTheReturn(t *testing.T) {
	t.Parallel()
	s := startTwoStores(t)
	a, b := s.join(t), s.join(t)
	takesFrom(t, patience, tierlock.Redis, a, b)
	var holds []*tierlock.Lock
	var tokens []tierlock.Token
	for i := range 20 {
		for resource, worth := range map[string]tierlock.Guarantee{"x": tierlock.Exclusive, "be": tierlock.FencedOnly} {
			k := mustLock(t, []*chained{a, b}[i%2].Locker, resource, fmt.Sprint(i))
			if k.Guarantee() != worth {
				t.Errorf("%s is worth %v", resource, k.Guarantee())
			}
			holds, tokens = append(holds, k), append(tokens, k.Token())
		}
	}
	nobodyEnters := func(when string) {
		t.Helper()
		for i := range 20 {
			wantHeld(t, fmt.Sprintf("%s: key %d in the other process", when, i), []*chained{b, a}[i%2].Locker, "x", fmt.Sprint(i))
		}
	}
	intact := func(when string) {
		t.Helper()
		for i, k := range holds {
			if err := k.Err(); err != nil {
				t.Errorf("%s: hold %d: %v", when, i, err)
			}
			if k.Token() != tokens[i] {
				t.Errorf("%s: the token is %v now, was %v", when, k.Token(), tokens[i])
			}
		}
	}
	s.redis.Kill()
	away := takesFrom(t, patience, tierlock.MySQL, a, b)
	nobodyEnters("on MySQL")
	intact("on MySQL")
	for _, i := range []int{0, 1} {
		rec, err := a.Inspect(bg, tokens[i].Resource, "0")
		if err != nil || !rec.Held || rec.Token.Lease != tokens[i].Lease || rec.Token.Fence != tokens[i].Fence {
			t.Errorf("MySQL has %+v (%v) of the hold %v", rec, err, tokens[i])
		}
	}
	time.Sleep(switchWait) // permits and polls go on
	intact("later")

	s.redis.Start()
	back := takesFrom(t, patience, tierlock.Redis, a, b)
	nobodyEnters("back on Redis")
	intact("back on Redis")
	t.Logf("exclusive locks again from MySQL after %v, from Redis after %v", away, back)
	for i, k := range holds {
		mustUnlock(t, k)
		next := mustLock(t, []*chained{b, a}[i/2%2].Locker, k.Token().Resource, k.Token().Key)
		if next.Token().Fence <= tokens[i].Fence || next.Token().Tier != tierlock.Redis {
			t.Errorf("after %v came %v", tokens[i], next.Token())
		}
		mustUnlock(t, next)
	}
	for _, p := range []*chained{a, b} {
		if want := []tierlock.Tier{tierlock.Redis, tierlock.MySQL, tierlock.Redis}; !slices.Equal(p.came(), want) {
			t.Errorf("modes in force were %v, want %v", p.came(), want)
		}
		if n := len(p.adopted()); n != 2*len(holds)/2 {
			t.Errorf("%d holds were told to have moved, want %d", n, len(holds))
		}
	}
}
