package redisstore_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

func beside(more ...string) []string { return slices.Concat(leastPermissions, more) }

// refused checks that no store is opened, and that the permission is named.
func refused(t *testing.T, opt rueidis.ClientOption, permission string) {
	t.Helper()
	s, err := openRefused(opt, calm)
	if s != nil {
		s.Close()
	}
	wantClass(t, "open without "+permission, err, tierlock.ErrMisconfigured)
	if s != nil || !strings.Contains(err.Error(), "missing permission: "+permission) {
		t.Errorf("without %s: got %v, %v", permission, s, err)
	}
}

// What the package comment adds for a Sentinel client is enough, for push as
// well, and the store finds the next primary with it.
func TestLeastPermissionsOnSentinel(t *testing.T) {
	t.Parallel()
	d := rig.StartSentinel(t)
	for _, n := range d.Nodes {
		permit(n, leastPermissions...)
	}
	opt := sentinelOptions(d)
	opt.Username, opt.Password = "app", "pw"
	refused(t, opt, "+role")
	for _, n := range d.Nodes {
		permit(n, beside("+role")...)
	}
	s := openWith(t, opt, calm)
	works(t, s)
	wantPush(t, s, eventuallyWatch(t, s, "k"), "k")
	old := d.Primary()
	old.Kill()
	d.NewPrimary(old)
	works(t, s)
}

// What it adds for a Cluster client is enough, for push and for a lock in a slot
// that is on its way: its key is at the target, which is asked by ASKING.
func TestLeastPermissionsOnCluster(t *testing.T) {
	t.Parallel()
	c := steadyCluster(t)
	for _, n := range c.Nodes {
		permit(n, leastPermissions...)
	}
	opt := clusterOptions(c)
	opt.Username, opt.Password = "app", "pw"
	refused(t, opt, "+cluster")
	for _, n := range c.Nodes {
		permit(n, beside("+cluster", "+asking")...)
	}
	s := openWith(t, opt, calm)
	works(t, s)
	wantPush(t, s, eventuallyWatch(t, s, "k"), "k")

	lease := newLease()
	mustAcquire(t, s, ask("k", lease, 30*time.Second))
	to := c.Nodes[0]
	if c.OwnerOf(keyOf("k")) == to {
		to = c.Nodes[1]
	}
	m := c.Migrate(keyOf("k"), to)
	m.Keys()
	if res := renewOne(t, s, "k", lease, time.Minute); res.Err != nil || res.State != tierlock.LeaseOwned {
		t.Errorf("renewal at the target: got %+v", res)
	}
	mustRelease(t, s, drop("k", lease), tierlock.LeaseOwned)
	m.Finish()
	works(t, s)
}
