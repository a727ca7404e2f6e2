package tierlock_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
)

const (
	linePolicies = "tierlock: a live member has other policies (Exclusive, Floor, Reentrant) for these resources: their holds are fenced-only"
	lineStores   = "tierlock: a live member has other stores in its chain: holds are fenced-only"
	lineAgain    = "tierlock: all live members have the same policies for these resources again"
)

// with registers further Exclusive resources, and looks at the mode often.
func with(names ...string) func(c *tierlock.Config) {
	return func(c *tierlock.Config) {
		edgePolls(c)
		for _, name := range names {
			c.Resources = append(c.Resources, tierlock.Resource{Name: name, Floor: tierlock.MySQL, Exclusive: true})
		}
	}
}

func closes(t *testing.T, p *chainProc) {
	t.Helper()
	if err := p.Close(bg); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// worthNow is what a new hold is worth.
func worthNow(t *testing.T, p *chainProc, resource string) tierlock.Guarantee {
	t.Helper()
	k := mustLock(t, p.Locker, resource, "new")
	defer mustUnlock(t, k)
	return k.Guarantee()
}

// Members that register other resources agree on those that they share. Where they do
// not, the holds of these resources fall, and no others.
func TestChainAgreesByResource(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(with("a", "s", "s2")), w.start(with("other", "s"))
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		time.Sleep(time.Second)
		for _, p := range []*chainProc{a, b} {
			if d := p.Status().Chain.Differing; d != nil || p.log.lines(linePolicies) != nil {
				t.Errorf("shared and not shared: differing %q, logged %q", d, p.log.lines(linePolicies))
			}
		}
		kx, ks, ka := mustLock(t, a.Locker, "x", "1"), mustLock(t, a.Locker, "s", "1"), mustLock(t, a.Locker, "a", "1")

		third := func() *chainProc {
			p := w.start(with("s", "s2"), func(c *tierlock.Config) {
				c.App = "third"
				c.Resources[3].Reentrant = true
				c.Resources[4].Exclusive = false
			})
			time.Sleep(time.Second)
			return p
		}
		c := third()
		for p, want := range map[*chainProc]string{a: "[s s2]", b: "[s]", c: "[s s2]"} {
			if got := fmt.Sprint(p.Status().Chain.Differing); got != want {
				t.Errorf("differing %v, want %v", got, want)
			}
			if lines := p.log.lines(linePolicies); len(lines) != 1 && p != c || len(lines) == 0 {
				t.Errorf("logged %q, want one line for each member that is another", lines)
			}
		}
		line := strings.Join(a.log.lines(linePolicies), "\n")
		for _, part := range []string{"ERROR ", "s s2", "app=third", "host=", "member="} {
			if !strings.Contains(line, part) {
				t.Errorf("the line %q says nothing of %q", line, part)
			}
		}
		if kx.Guarantee() != tierlock.Exclusive || ks.Guarantee() != tierlock.FencedOnly || ka.Guarantee() != tierlock.Exclusive {
			t.Errorf("what was held: x is %v, s is %v, a is %v", kx.Guarantee(), ks.Guarantee(), ka.Guarantee())
		}
		for resource, want := range map[string]tierlock.Guarantee{"x": tierlock.Exclusive, "a": tierlock.Exclusive, "s": tierlock.FencedOnly, "s2": tierlock.FencedOnly} {
			if got := worthNow(t, a, resource); got != want {
				t.Errorf("a new hold of %s is %v, want %v", resource, got, want)
			}
		}
		_, err := a.TryLock(bg, "s", "2", tierlock.RequireGuarantee(tierlock.Exclusive))
		wantIs(t, "TryLock", err, tierlock.ErrUnavailable)
		for _, part := range []string{"third@", "another policy"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("the error %v says nothing of %q", err, part)
			}
		}
		k, err := a.TryLock(bg, "x", "2", tierlock.RequireGuarantee(tierlock.Exclusive))
		if err != nil {
			t.Errorf("of a resource on which all agree: %v", err)
		}
		mustUnlock(t, k)

		// Told once: a second one with the same policies is no news, and that the first
		// has gone neither.
		d := third()
		closes(t, c)
		time.Sleep(time.Second)
		if n := len(a.log.lines(linePolicies)) + len(a.log.lines(lineAgain)); n != 1 {
			t.Errorf("logged %d lines, want one still", n)
		}
		closes(t, d)
		time.Sleep(time.Second)
		for p, want := range map[*chainProc]string{a: "s s2", b: "s"} {
			lines := p.log.lines(lineAgain)
			if len(lines) != 1 || !strings.HasPrefix(lines[0], "INFO ") || !strings.Contains(lines[0], want) || p.Status().Chain.Differing != nil {
				t.Errorf("after the third has left: logged %q, differing %q", lines, p.Status().Chain.Differing)
			}
		}
		if ks.Guarantee() != tierlock.FencedOnly || worthNow(t, a, "s") != tierlock.Exclusive {
			t.Errorf("after the third has left: what was held is %v, a new hold %v", ks.Guarantee(), worthNow(t, a, "s"))
		}
		for _, k := range []*tierlock.Lock{kx, ks, ka} {
			mustUnlock(t, k)
		}
	})
}

// A member that has died is none that disagrees.
func TestChainForgetsTheDead(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a, b := w.start(edgePolls), w.start(otherPolicy)
		chainTakes(t, 2*time.Second, tierlock.Redis, a, b)
		time.Sleep(time.Second)
		if d := a.Status().Chain.Differing; !slices.Equal(d, []string{"x"}) {
			t.Fatalf("differing %q", d)
		}
		b.mc.SetFaults(cutOff)
		time.Sleep(time.Second)
		if d := a.Status().Chain.Differing; d != nil || worthNow(t, a, "x") != tierlock.Exclusive {
			t.Errorf("differing %q from one that writes no more", d)
		}
		b.mc.SetFaults(near1ms)
	})
}

// Other stores are a difference in everything.
func TestChainOfOtherStores(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		a := w.start(edgePolls)
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		k := mustLock(t, a.Locker, "x", "1")
		b := w.start(edgePolls, func(c *tierlock.Config) { c.App, c.Stores = "odd", c.Stores[1:] })
		time.Sleep(time.Second)
		if d := a.Status().Chain.Differing; !slices.Equal(d, []string{"b", "r", "x"}) || k.Guarantee() != tierlock.FencedOnly {
			t.Errorf("differing %q, what is held is %v", d, k.Guarantee())
		}
		if lines := a.log.lines(lineStores); len(lines) != 1 || !strings.HasPrefix(lines[0], "ERROR ") || !strings.Contains(lines[0], "app=odd") {
			t.Errorf("logged %q", lines)
		}
		_, err := a.TryLock(bg, "x", "2", tierlock.RequireGuarantee(tierlock.Exclusive))
		if err == nil || !strings.Contains(err.Error(), "odd@") || !strings.Contains(err.Error(), "other stores") {
			t.Errorf("the error is %v", err)
		}
		closes(t, b)
		time.Sleep(time.Second)
		if d := a.Status().Chain.Differing; d != nil || len(a.log.lines(lineAgain)) != 1 {
			t.Errorf("after it has left: differing %q, logged %q", d, a.log.lines(lineAgain))
		}
		mustUnlock(t, k)
	})
}

// A process may register so many resources as it can tell the others of.
func TestChainResourcesAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *chainWorld) {
		fill := func(n int) func(c *tierlock.Config) {
			return func(c *tierlock.Config) {
				for len(c.Resources) < n {
					c.Resources = append(c.Resources, tierlock.Resource{Name: fmt.Sprint("r", len(c.Resources))})
				}
			}
		}
		a := w.start(fill(tierlock.MaxChainResources))
		chainTakes(t, 2*time.Second, tierlock.Redis, a)
		cfg := tierlock.Config{App: "a", Namespace: "n", Stores: []tierlock.Store{a.rc, a.mc}, Resources: []tierlock.Resource{{Name: "x", Floor: tierlock.MySQL}}}
		fill(tierlock.MaxChainResources + 1)(&cfg)
		_, err := tierlock.New(cfg)
		var bad *tierlock.InvalidError
		if !errors.As(err, &bad) || bad.Field != "Resources" || !strings.Contains(bad.Bound, "500") {
			t.Errorf("one more: %v", err)
		}
		// Without a chain nobody is told.
		cfg.Stores, cfg.Resources[0].Floor = cfg.Stores[:1], 0
		l, err := tierlock.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(bg); err != nil {
			t.Error(err)
		}
	})
}
