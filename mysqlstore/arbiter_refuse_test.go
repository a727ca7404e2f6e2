package mysqlstore_test

import (
	"strings"
	"testing"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/degrade"
)

// What the tables cannot hold, and what is none of the arbiter's, is refused before
// anything is sent; a row that makes no sense is told as such.
func TestArbiterRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db, s := admin(t, srv), open(t, srv.DSN(""), calm)
	mode := firstMode(t, s)
	putMode(t, db, "n", mode)
	before := chainRows(t, db)
	change := func(f func(self *degrade.Self, a *degrade.Action)) (degrade.Self, degrade.Action) {
		self, a := chainSelf("n", 1), degrade.Action{Kind: degrade.Start, From: mode, To: drainOf(mode)}
		f(&self, &a)
		return self, a
	}
	for says, f := range map[string]func(self *degrade.Self, a *degrade.Action){
		"none of the arbiter's": func(_ *degrade.Self, a *degrade.Action) { a.Kind = degrade.Adopt },
		"action 0":              func(_ *degrade.Self, a *degrade.Action) { a.Kind = 0 },
		"namespace":             func(self *degrade.Self, _ *degrade.Action) { self.Namespace = "" },
		"no id":                 func(self *degrade.Self, _ *degrade.Action) { self.Member = "" },
		"65 bytes":              func(self *degrade.Self, _ *degrade.Action) { self.Member = strings.Repeat("m", 65) },
		"the digest":            func(self *degrade.Self, _ *degrade.Action) { self.Digest = strings.Repeat("d", degrade.MaxDigest+1) },
		"the incarnation":       func(_ *degrade.Self, a *degrade.Action) { a.To.Incarnation = strings.Repeat("i", 4097) },
		"the server":            func(_ *degrade.Self, a *degrade.Action) { a.To.Server = strings.Repeat("s", 513) },
		"Tier:NONE":             func(_ *degrade.Self, a *degrade.Action) { a.To.Tier = 0 },
		"Term:1ns":              func(_ *degrade.Self, a *degrade.Action) { a.To.Term = 1 },
		"Drift:1000":            func(_ *degrade.Self, a *degrade.Action) { a.To.Drift = 1000 },
		"Epoch:16384":           func(_ *degrade.Self, a *degrade.Action) { a.To.Epoch = degrade.MaxEpoch + 1 },
		"Drain:false Hard:true": func(_ *degrade.Self, a *degrade.Action) { a.To.Drain, a.To.Hard = false, true },
		"does not lead":         func(_ *degrade.Self, a *degrade.Action) { a.To = degrade.Mode{} },
		"does not lead from":    func(_ *degrade.Self, a *degrade.Action) { a.Kind, a.From.Drain = degrade.Refresh, true },
		"not lead":              func(_ *degrade.Self, a *degrade.Action) { a.Kind = degrade.Open },
		"lead from":             func(_ *degrade.Self, a *degrade.Action) { a.Kind, a.To.Hard = degrade.Takeover, false },
		"from {Epoch:0":         func(_ *degrade.Self, a *degrade.Action) { a.Kind, a.From = degrade.Create, degrade.Mode{} },
	} {
		self, a := change(f)
		r, err := s.Arbitrate(background, self, a)
		wantClass(t, says, err, tierlock.ErrMisconfigured, says)
		if r.OK {
			t.Errorf("%s: done", says)
		}
	}
	if after := chainRows(t, db); after != before {
		t.Errorf("changed\n%s\nto\n%s", before, after)
	}
	for column, value := range map[string]any{"epoch": 0, "phase": "CLOSED", "tier": "DISK", "term": 0, "drift": 1000} {
		putMode(t, db, "n", mode)
		execute(t, db, "UPDATE lock_mode SET "+column+"=?", value)
		_, err := s.Arbitrate(background, chainSelf("n", 1), degrade.Action{Kind: degrade.Poll})
		wantClass(t, column, err, tierlock.ErrMisconfigured, "cannot be understood", column)
	}
	execute(t, db, "DROP TABLE lock_permit")
	_, err := s.Arbitrate(background, chainSelf("n", 1), degrade.Action{Kind: degrade.Poll})
	wantClass(t, "no table", err, tierlock.ErrMisconfigured, "1146", "Migrate")
	s.Close()
	_, err = s.Arbitrate(background, chainSelf("n", 1), degrade.Action{Kind: degrade.Poll})
	wantClass(t, "closed", err, tierlock.ErrUnavailable, "closed")
}
