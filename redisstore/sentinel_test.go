package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
)

// Scenario 57 with Sentinel: the connection for watches leads to a primary that
// dies, falls silent (which ends no connection) or is demoted. It is noticed
// within seconds, whatever the client itself looks at, and the watch is live at
// the new primary.
func TestWatchFollowsThePrimary(t *testing.T) {
	t.Parallel()
	unwatchful := func(o *rueidis.ClientOption) {
		o.Dialer.KeepAlive = time.Hour // the client does not ask whether the server is there
	}
	for _, change := range []struct {
		name   string
		f      func(*rig.Sentinel, *rig.RedisServer)
		option func(*rueidis.ClientOption)
	}{
		{"killed", func(_ *rig.Sentinel, p *rig.RedisServer) { p.Kill() }, nil},
		{"stopped", func(_ *rig.Sentinel, p *rig.RedisServer) { p.Pause() }, nil},
		{"stopped, unwatchful client", func(_ *rig.Sentinel, p *rig.RedisServer) { p.Pause() }, unwatchful},
		{"demoted", func(d *rig.Sentinel, _ *rig.RedisServer) {
			d.Sentinels[0].Do("SENTINEL", "FAILOVER", d.Master)
		}, nil},
	} {
		t.Run(change.name, func(t *testing.T) {
			t.Parallel()
			d := rig.StartSentinel(t)
			opt := sentinelOptions(d)
			if change.option != nil {
				change.option(&opt)
			}
			s, other := openWith(t, opt, calm), openWith(t, sentinelOptions(d), calm)
			w := eventuallyWatch(t, s, "k")
			wantPush(t, other, w, "k")
			old := d.Primary()
			began := time.Now()
			change.f(d, old)
			next := d.NewPrimary(old)
			over := time.Now()
			rig.Eventually(t, patience, "the watch is subscribed at the new primary", func() bool { return channels(next) == 1 })
			if !signalled(w, patience) {
				t.Fatal("no signal after the failover")
			}
			t.Logf("new primary after %v, subscribed there %v later", over.Sub(began), time.Since(over))
			rig.Eventually(t, patience, "the store works", func() bool {
				res, err := other.Acquire(background, ask("k", "probe", time.Minute))
				return err == nil && res.Granted
			})
			mustRelease(t, other, drop("k", "probe"), tierlock.LeaseOwned)
			wantPush(t, other, w, "k")
			w.Close()
			rig.Eventually(t, patience, "no channel is left", func() bool { return channels(next) == 0 })
		})
	}
}
