package tierlock

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tierlock/tierlock/degrade"
)

// tiered is a store of which nothing but its tier is asked.
type tiered struct {
	Store
	tier Tier
}

func (s tiered) Tier() Tier { return s.tier }

func agreeConfig(stores []Tier, resources ...Resource) *Config {
	c := &Config{Resources: resources}
	for _, t := range stores {
		c.Stores = append(c.Stores, tiered{tier: t})
	}
	return c
}

var (
	redisFirst = []Tier{Redis, MySQL}
	withLocal  = []Tier{Redis, MySQL, Local}
	mysqlAlone = []Tier{MySQL}
)

// What two members have to agree on, as the one sees the other and the other way round.
func TestDifferingResources(t *testing.T) {
	x := Resource{Name: "x", Exclusive: true, Floor: MySQL}
	change := func(f func(r *Resource)) Resource { r := x; f(&r); return r }
	y, z := change(func(r *Resource) { r.Name = "y" }), change(func(r *Resource) { r.Name = "z" })
	for _, tc := range []struct {
		what       string
		one, other *Config
		differ     string // of both
		stores     bool
	}{
		{"the same", agreeConfig(redisFirst, x, y), agreeConfig(redisFirst, y, x), "", false},
		{"one has more", agreeConfig(redisFirst, x, y, z), agreeConfig(redisFirst, y), "", false},
		{"none in common", agreeConfig(redisFirst, x), agreeConfig(redisFirst, y, z), "", false},
		{"not exclusive", agreeConfig(redisFirst, y, x), agreeConfig(redisFirst, change(func(r *Resource) { r.Exclusive = false }), y, z), "x", false},
		{"reentrant", agreeConfig(redisFirst, x, y), agreeConfig(redisFirst, change(func(r *Resource) { r.Reentrant = true }), z), "x", false},
		{"another floor", agreeConfig(withLocal, change(func(r *Resource) { r.Exclusive = false }), y),
			agreeConfig(withLocal, change(func(r *Resource) { r.Exclusive, r.Floor = false, Local }), y), "x", false},
		{"no part in the chain", agreeConfig(redisFirst, x, y), agreeConfig(redisFirst, Resource{Name: "x"}, y), "x", false},
		{"two", agreeConfig(redisFirst, x, y, z), agreeConfig(redisFirst, Resource{Name: "z"}, Resource{Name: "x"}), "x z", false},
		{"no floor is the first store", agreeConfig(redisFirst, Resource{Name: "x"}, y), agreeConfig(redisFirst, Resource{Name: "x", Floor: Redis}, y), "", false},
		{"and that may be MySQL", agreeConfig(mysqlAlone, Resource{Name: "x", Exclusive: true}), agreeConfig(mysqlAlone, x), "", false},
		{"the rest need not agree", agreeConfig(redisFirst, x), agreeConfig(redisFirst, change(func(r *Resource) { r.TTL, r.MaxHolds, r.Expect, r.MaxWaiters = 7, 7, 7, 7 })), "", false},
		{"a local store", agreeConfig(redisFirst, x), agreeConfig(withLocal, x, Resource{Name: "y", Floor: Local}), "", false},
		{"other stores", agreeConfig(redisFirst, x), agreeConfig(mysqlAlone, x), "x", true},
	} {
		for _, pair := range [][2]*Config{{tc.one, tc.other}, {tc.other, tc.one}} {
			got, stores := pair[0].differing(pair[1].digest())
			if strings.Join(got, " ") != tc.differ || stores != tc.stores {
				t.Errorf("%s: %q differ, stores: %v; want %q, %v", tc.what, got, stores, tc.differ, tc.stores)
			}
		}
	}
	own := agreeConfig(redisFirst, x, y)
	for _, digest := range []string{"", "x", own.digest() + "x", own.digest()[1:], strings.Replace(own.digest(), ":", "", 1)} {
		if got, stores := own.differing(digest); !slices.Equal(got, []string{"x", "y"}) || !stores {
			t.Errorf("%q, which nobody understands: %q differ, stores: %v", digest, got, stores)
		}
	}
}

// Each policy has a digest of its own, and as many resources as are allowed fit in.
func TestDigestHolds(t *testing.T) {
	seen := map[string]Resource{}
	for _, floor := range withLocal {
		for bits := range 4 {
			r := Resource{Name: "x", Floor: floor, Exclusive: bits&1 != 0, Reentrant: bits&2 != 0}
			d := agreeConfig(withLocal, r).digest()
			if other, known := seen[d]; known {
				t.Errorf("%+v and %+v have the digest %q", r, other, d)
			}
			seen[d] = r
		}
	}
	var many []Resource
	for i := range MaxChainResources {
		many = append(many, Resource{Name: fmt.Sprint("resource:", i), Exclusive: true, Reentrant: true, Floor: MySQL})
	}
	c := agreeConfig(withLocal, many...)
	if d := c.digest(); len(d) > degrade.MaxDigest || len(d) < entryChars*MaxChainResources {
		t.Errorf("%d resources have a digest of %d bytes, want at most %d", MaxChainResources, len(d), degrade.MaxDigest)
	}
	if got, stores := c.differing(c.digest()); got != nil || stores {
		t.Errorf("it differs from itself: %q, stores: %v", got, stores)
	}
}

// A line names some of many.
func TestFew(t *testing.T) {
	var names []string
	for i := range 22 {
		names = append(names, fmt.Sprint(i))
	}
	if got := few(names[:20]); got != strings.Join(names[:20], " ") {
		t.Errorf("of 20: %q", got)
	}
	if got := few(names); got != strings.Join(names[:20], " ")+" and 2 more" {
		t.Errorf("of 22: %q", got)
	}
}
