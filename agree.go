package tierlock

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/tierlock/tierlock/degrade"
)

// What the members of a chain have to agree on, each tells the others in its digest:
// the stores other than local, a colon, and for each resource, whether it goes by the
// chain or not, eight characters that stand for its name and one for its policy.
//
// The eight are 48 bits of a hash. That any two of a thousand names in a namespace have
// the same comes to 2 in 10^9. Then one may be taken for the other: a difference is told
// where there is none, or one of these two resources is not compared.
const (
	nameChars  = 8
	entryChars = nameChars + 1
	// MaxChainResources is the most resources that a process may register whose
	// locks go by a chain with MySQL: what they are is told in one row.
	MaxChainResources = 500
)

// digest tells what this process thinks of its stores and resources.
func (c *Config) digest() string {
	var stores, entries []string
	for _, s := range c.Stores {
		if s.Tier() != Local {
			stores = append(stores, s.Tier().String())
		}
	}
	for _, r := range c.Resources {
		entries = append(entries, c.entry(r))
	}
	slices.Sort(entries)
	return strings.Join(stores, "+") + ":" + strings.Join(entries, "")
}

// entry tells of one resource. No floor is the same as that of the first store.
func (c *Config) entry(r Resource) string {
	sum := sha256.Sum256([]byte(r.Name))
	policy := uint8(max(r.Floor, c.Stores[0].Tier())) << 2
	if r.Exclusive {
		policy |= 1
	}
	if r.Reentrant {
		policy |= 2
	}
	return base64.RawURLEncoding.EncodeToString(sum[:])[:nameChars] + fmt.Sprintf("%x", policy&15)
}

// differing compares with the digest of another process. It gives the resources that
// both have, and for which the policies are not the same. If its stores are others, or
// the digest is not understood, all resources differ, and stores is true.
func (c *Config) differing(digest string) (resources []string, stores bool) {
	theirs, entries, ok := strings.Cut(digest, ":")
	ours, _, _ := strings.Cut(c.digest(), ":")
	stores = !ok || theirs != ours || len(entries)%entryChars != 0
	policies := make(map[string]byte)
	for ; len(entries) >= entryChars; entries = entries[entryChars:] {
		policies[entries[:nameChars]] = entries[nameChars]
	}
	for _, r := range c.Resources {
		e := c.entry(r)
		if policy, both := policies[e[:nameChars]]; stores || both && policy != e[nameChars] {
			resources = append(resources, r.Name)
		}
	}
	slices.Sort(resources)
	return resources, stores
}

// disputes has, for each resource about which live members do not agree with this
// process, one of them and what is different there.
type disputes map[string]string

// review is told, on the runner's goroutine, of a live member for each digest that is
// not this process's own. Where policies differ, no hold is worth more than FencedOnly.
func (c *chain) review(others []degrade.Member) {
	was, now := c.disputed(), disputes{}
	say := c.locker.notify.say
	for _, m := range others {
		names, stores := c.locker.cfg.differing(m.Digest)
		why, line := "has another policy (Exclusive, Floor, Reentrant) for it", "tierlock: a live member has other policies (Exclusive, Floor, Reentrant) for these resources: their holds are fenced-only"
		if stores {
			why, line = "has other stores", "tierlock: a live member has other stores in its chain: holds are fenced-only"
		}
		var begun []string
		for _, name := range names {
			if now[name] != "" {
				continue
			}
			now[name] = fmt.Sprintf("the member %s@%s %s", m.App, m.Host, why)
			if was[name] == "" {
				begun = append(begun, name)
			}
		}
		if begun != nil {
			say(slog.LevelError, line, Token{}, slog.String("resources", few(begun)),
				slog.String("app", m.App), slog.String("host", m.Host), slog.String("member", m.ID))
		}
	}
	c.disputes.Store(&now) // before the look at the holds: see enter
	for _, h := range c.all() {
		if now[h.resource] != "" {
			h.lower(FencedOnly)
		}
	}
	var ended []string
	for name := range was {
		if now[name] == "" {
			ended = append(ended, name)
		}
	}
	if ended != nil {
		slices.Sort(ended)
		say(slog.LevelInfo, "tierlock: all live members have the same policies for these resources again", Token{}, slog.String("resources", few(ended)))
	}
}

func (c *chain) disputed() disputes {
	if d := c.disputes.Load(); d != nil {
		return *d
	}
	return nil
}

// best is the most that a hold can be worth.
func (c *chain) best(exclusive bool) Guarantee {
	if exclusive {
		return c.mysql.Guarantee()
	}
	return min(c.mysql.Guarantee(), FencedOnly)
}

// worth is what a hold of a resource that is taken on a tier now is worth.
func (c *chain) worth(resource string, exclusive bool, t degrade.Tier) Guarantee {
	return c.best(exclusive && c.doubt(resource, t) == "")
}

// worthLess is the error for a hold that is worth g, which is less than the call wants.
func (a *acquisition) worthLess(g Guarantee, t degrade.Tier) error {
	err := fmt.Errorf("%w: a hold is %v now, and %v is required", ErrUnavailable, g, a.call.worth)
	if c := a.locker.chain; c != nil {
		if why := c.doubt(a.resource.cfg.Name, t); why != "" {
			return fmt.Errorf("%w: %s", err, why)
		}
	}
	return err
}

// few names the first of many.
func few(names []string) string {
	const most = 20
	if n := len(names); n > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], " "), n-most)
	}
	return strings.Join(names, " ")
}
