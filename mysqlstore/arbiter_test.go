package mysqlstore_test

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierlock/tierlock/degrade"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

// chainSelf is a member of a chain.
func chainSelf(namespace string, n int) degrade.Self {
	return degrade.Self{Namespace: namespace, Member: memberID(n), Digest: "digest", App: "order", Host: "host-1", PID: 4711}
}

// arbitrate carries out an action and wants an answer.
func arbitrate(t testing.TB, s *mysqlstore.Store, self degrade.Self, a degrade.Action) degrade.Reply {
	t.Helper()
	r, err := s.Arbitrate(background, self, a)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func pollMode(t testing.TB, s *mysqlstore.Store, namespace string) degrade.Reply {
	t.Helper()
	return arbitrate(t, s, chainSelf(namespace, 99), degrade.Action{Kind: degrade.Poll})
}

// putMode writes a mode as it is, by hand.
func putMode(t testing.TB, db *sql.DB, namespace string, m degrade.Mode) {
	t.Helper()
	phase := "OPEN"
	switch {
	case m.Hard:
		phase = "HARD"
	case m.Drain:
		phase = "DRAIN"
	}
	execute(t, db, "REPLACE INTO lock_mode VALUES (?,?,?,?,?,?,?,?,'',UTC_TIMESTAMP(6))", namespace, m.Epoch, phase, m.Tier.String(),
		m.Incarnation, m.Server, m.Term.Microseconds(), m.Drift)
}

// chainRows are both tables as they are, as text.
func chainRows(t testing.TB, db *sql.DB) string {
	t.Helper()
	var all []string
	for _, table := range []string{"lock_mode", "lock_permit"} {
		rows, err := db.Query("SELECT * FROM " + table)
		if err != nil {
			t.Fatal(err)
		}
		columns, _ := rows.Columns()
		for rows.Next() {
			cells, to := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
			for i := range cells {
				to[i] = &cells[i]
			}
			if err := rows.Scan(to...); err != nil {
				t.Fatal(err)
			}
			line := table
			for _, c := range cells {
				line += fmt.Sprintf("|%q", c)
			}
			all = append(all, line)
		}
		rows.Close()
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// firstMode is a mode of the server that answers s.
func firstMode(t testing.TB, s *mysqlstore.Store) degrade.Mode {
	t.Helper()
	return degrade.Mode{Epoch: 7, Tier: degrade.Redis, Incarnation: "replica's id", Server: pollMode(t, s, "nobody").Server, Term: time.Minute, Drift: 10}
}

func drainOf(m degrade.Mode) degrade.Mode {
	m.Epoch++
	m.Drain, m.Hard, m.Tier, m.Incarnation = true, false, degrade.MySQL, ""
	return m
}

// arbiterSessions are the sessions that everything is tried over; the second is
// told that it has a MySQL.
func arbiterSessions(t *testing.T, f func(t *testing.T, db *sql.DB, s *mysqlstore.Store)) {
	maria, other := migrated(t), migrated(t, "--version=8.0.36")
	for _, c := range []struct {
		name   string
		srv    *rig.MariaDBServer
		params string
	}{
		{"plain", maria, ""},
		{"as MySQL", other, "innodb_lock_wait_timeout=1"},
		{"found rows, elsewhere", maria, "clientFoundRows=true&parseTime=true&loc=Asia%2FTokyo&time_zone=%27-08%3A00%27&tx_isolation=%27READ-COMMITTED%27&interpolateParams=true&charset=latin1&sql_select_limit=1&sql_mode=%27ANSI,EMPTY_STRING_IS_NULL,STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES%27"},
		{"serializable", other, "tx_isolation=%27SERIALIZABLE%27&sql_safe_updates=1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f(t, admin(t, c.srv), open(t, c.srv.DSN(c.params), calm))
		})
	}
}

var chainNames atomic.Int64

func newChainName() string { return fmt.Sprint("chain-", chainNames.Add(1)) }

// Each statement on a mode writes where the row is that very mode and the server's
// own; where any part of it is another, it writes nothing.
func TestArbiterConditions(t *testing.T) {
	t.Parallel()
	arbiterSessions(t, func(t *testing.T, db *sql.DB, s *mysqlstore.Store) {
		open := firstMode(t, s)
		drain, hard, mysql := drainOf(open), drainOf(open), open
		hard.Hard = true
		mysql.Tier, mysql.Incarnation = degrade.MySQL, ""
		taken := hard
		taken.Epoch, taken.Server = hard.Epoch+16, ""
		for _, c := range []struct {
			what string
			a    degrade.Action
			to   degrade.Mode // the row afterwards
		}{
			{"refresh", degrade.Action{Kind: degrade.Refresh, From: open}, open},
			{"refresh on MySQL", degrade.Action{Kind: degrade.Refresh, From: mysql}, mysql},
			{"start", degrade.Action{Kind: degrade.Start, From: open, To: drain}, drain},
			{"ack", degrade.Action{Kind: degrade.Ack, From: drain}, drain},
			{"ack of a hard drain", degrade.Action{Kind: degrade.Ack, From: hard}, hard},
			{"open", degrade.Action{Kind: degrade.Open, From: drain}, opened(drain)},
			{"open after a hard drain", degrade.Action{Kind: degrade.Open, From: hard}, opened(hard)},
		} {
			t.Run(c.what, func(t *testing.T) {
				name := newChainName()
				self := chainSelf(name, 1)
				for what, row := range unlike(c.a.From) {
					putMode(t, db, name, row)
					before := chainRows(t, db)
					if r := arbitrate(t, s, self, c.a); r.OK {
						t.Errorf("where %s is another: done", what)
					}
					if after := chainRows(t, db); after != before {
						t.Errorf("where %s is another: changed\n%s\nto\n%s", what, before, after)
					}
				}
				// From is the row, but the row is another server's.
				strange := c.a
				strange.From.Server = "another"
				if strange.To.Known() {
					strange.To.Server = "another"
				}
				putMode(t, db, name, strange.From)
				before := chainRows(t, db)
				if r := arbitrate(t, s, self, strange); r.OK {
					t.Error("on another server: done")
				}
				if after := chainRows(t, db); after != before {
					t.Errorf("on another server: changed\n%s\nto\n%s", before, after)
				}
				execute(t, db, "DELETE FROM lock_mode WHERE namespace=?", name)
				before = chainRows(t, db)
				if r := arbitrate(t, s, self, c.a); r.OK {
					t.Error("without a mode: done")
				}
				if after := chainRows(t, db); after != before {
					t.Errorf("without a mode: changed\n%s\nto\n%s", before, after)
				}
				putMode(t, db, name, c.a.From)
				if r := arbitrate(t, s, self, c.a); !r.OK {
					t.Error("on that very mode: refused")
				}
				if r := pollMode(t, s, name); r.Mode != c.to {
					t.Errorf("the mode is\n%+v, wanted\n%+v", r.Mode, c.to)
				}
			})
		}
	})
}

func opened(m degrade.Mode) degrade.Mode {
	m.Drain, m.Hard = false, false
	return m
}

// unlike are modes that are another than m in one respect each.
func unlike(m degrade.Mode) map[string]degrade.Mode {
	all := make(map[string]degrade.Mode)
	but := func(what string, change func(m *degrade.Mode)) {
		n := m
		change(&n)
		all[what] = n
	}
	but("a later epoch", func(m *degrade.Mode) { m.Epoch++ })
	but("an earlier epoch", func(m *degrade.Mode) { m.Epoch-- })
	but("the phase", func(m *degrade.Mode) { m.Drain, m.Hard = !m.Drain, false })
	but("hardness", func(m *degrade.Mode) { m.Drain, m.Hard = true, !m.Hard })
	but("the tier", func(m *degrade.Mode) { m.Tier = degrade.Redis + degrade.MySQL - m.Tier })
	but("the incarnation", func(m *degrade.Mode) { m.Incarnation += " " })
	but("the server", func(m *degrade.Mode) { m.Server += " " })
	but("the term", func(m *degrade.Mode) { m.Term += time.Microsecond })
	but("the drift", func(m *degrade.Mode) { m.Drift++ })
	return all
}

// What is written is what is read.
func TestArbiterRows(t *testing.T) {
	t.Parallel()
	arbiterSessions(t, func(t *testing.T, db *sql.DB, s *mysqlstore.Store) {
		name := newChainName()
		a, b := chainSelf(name, 1), chainSelf(name, 2)
		a.App, a.Host, a.Digest = `o'rder\"`, "é"+strings.Repeat("x", 300), ""
		first := firstMode(t, s)
		first.Epoch = 1
		if r := pollMode(t, s, name); !r.OK || r.Mode.Known() || r.Members != nil || r.Server == "" {
			t.Errorf("nothing there: %+v", r)
		}
		elsewhere := first
		elsewhere.Server = "another"
		if r := arbitrate(t, s, a, degrade.Action{Kind: degrade.Create, To: elsewhere}); r.OK {
			t.Error("created for another server")
		}
		if r := arbitrate(t, s, a, degrade.Action{Kind: degrade.Create, To: first}); !r.OK {
			t.Error("not created")
		}
		second := first
		second.Tier, second.Incarnation = degrade.MySQL, ""
		for _, again := range []degrade.Mode{first, second} {
			if r := arbitrate(t, s, b, degrade.Action{Kind: degrade.Create, To: again}); r.OK {
				t.Error("created twice")
			}
		}
		want := degrade.Reply{OK: true, Mode: first, Server: first.Server}
		check := func() {
			t.Helper()
			got := pollMode(t, s, name)
			seen := make(map[uint64]bool)
			for i := range got.Members {
				if m := &got.Members[i]; m.Beat == 0 || seen[m.Beat] {
					t.Errorf("beat %d", m.Beat)
				} else {
					seen[m.Beat], m.Beat = true, 0
				}
			}
			slices.SortFunc(got.Members, func(m, n degrade.Member) int { return strings.Compare(m.ID, n.ID) })
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				t.Errorf("read\n%+v, wanted\n%+v", got, want)
			}
		}
		check()
		vote := degrade.Vote{Up: true, Incarnation: "0"}
		must := func(self degrade.Self, act degrade.Action) {
			t.Helper()
			if r := arbitrate(t, s, self, act); !r.OK {
				t.Errorf("refused: %+v", act)
			}
		}
		must(a, degrade.Action{Kind: degrade.Refresh, From: first, Vote: vote})
		want.Members = []degrade.Member{{ID: a.Member, Epoch: 1, Vote: vote, Digest: a.Digest, App: a.App, Host: "é" + strings.Repeat("x", 253)}}
		check()
		vote = degrade.Vote{Down: true}
		must(a, degrade.Action{Kind: degrade.Refresh, From: first, Vote: vote})
		must(b, degrade.Action{Kind: degrade.Refresh, From: first, Vote: vote})
		want.Members[0].Vote = vote
		want.Members = append(want.Members, degrade.Member{ID: b.Member, Epoch: 1, Vote: vote, Digest: b.Digest, App: b.App, Host: b.Host})
		check()
		want.Mode = drainOf(first)
		must(b, degrade.Action{Kind: degrade.Start, From: first, To: want.Mode})
		check()
		c := chainSelf(name, 3)
		must(b, degrade.Action{Kind: degrade.Ack, From: want.Mode, Vote: degrade.Vote{Up: true}})
		must(c, degrade.Action{Kind: degrade.Ack, From: want.Mode}) // its row was removed meanwhile
		want.Members[1].Acked, want.Members[1].Vote = 2, degrade.Vote{Up: true}
		want.Members = append(want.Members, degrade.Member{ID: c.Member, Acked: 2, Digest: c.Digest, App: c.App, Host: c.Host})
		check()
		must(a, degrade.Action{Kind: degrade.Open, From: want.Mode})
		want.Mode = opened(want.Mode)
		must(b, degrade.Action{Kind: degrade.Refresh, From: want.Mode})
		want.Members[1].Epoch, want.Members[1].Vote = 2, degrade.Vote{}
		check()
		must(c, degrade.Action{Kind: degrade.Leave})
		want.Members = want.Members[:2]
		check()
		if r := arbitrate(t, s, c, degrade.Action{Kind: degrade.Leave}); r.OK {
			t.Error("left twice")
		}
		if n := number(t, db, "SELECT COUNT(*) FROM lock_mode WHERE namespace=? AND reason LIKE 'opened by %' AND ABS(TIMESTAMPDIFF(SECOND,changed_at,UTC_TIMESTAMP(6)))<60", name); n != 1 {
			t.Error("the row does not say who has changed it, and when")
		}
	})
}

// A member's row goes only while its beat is the one that was seen.
func TestArbiterRemoves(t *testing.T) {
	t.Parallel()
	arbiterSessions(t, func(t *testing.T, db *sql.DB, s *mysqlstore.Store) {
		name, other := newChainName(), newChainName()
		mode := firstMode(t, s)
		putMode(t, db, name, mode)
		putMode(t, db, other, mode)
		self, me := chainSelf(name, 1), chainSelf(name, 2)
		refresh := degrade.Action{Kind: degrade.Refresh, From: mode}
		seen := func() degrade.Action {
			r := pollMode(t, s, name)
			for _, m := range r.Members {
				if m.ID == self.Member {
					return degrade.Action{Kind: degrade.Remove, Member: m.ID, Beat: m.Beat}
				}
			}
			t.Fatalf("not among %+v", r.Members)
			return degrade.Action{}
		}
		arbitrate(t, s, self, refresh)
		arbitrate(t, s, me, refresh)
		arbitrate(t, s, chainSelf(other, 1), refresh)
		old := seen()
		arbitrate(t, s, self, refresh)
		if r := arbitrate(t, s, me, old); r.OK {
			t.Error("removed after it had beaten")
		}
		now := seen()
		strange := mode
		strange.Server = "another"
		putMode(t, db, name, strange)
		if r := arbitrate(t, s, me, now); r.OK {
			t.Error("removed on another server")
		}
		if r := arbitrate(t, s, self, degrade.Action{Kind: degrade.Leave}); r.OK {
			t.Error("left on another server")
		}
		putMode(t, db, name, mode)
		if r := arbitrate(t, s, me, now); !r.OK {
			t.Error("not removed")
		}
		if r := arbitrate(t, s, me, now); r.OK {
			t.Error("removed twice")
		}
		if n := number(t, db, "SELECT COUNT(*) FROM lock_permit WHERE namespace=?", other); n != 1 {
			t.Error("removed in another namespace")
		}
		if got := pollMode(t, s, name).Members; len(got) != 1 || got[0].ID != me.Member {
			t.Errorf("left are %+v", got)
		}
	})
}

// The arbiter lost the last write of a member, as a failover may. What the member
// writes next must not look like what was lost: who has seen that would take it
// for silence since then.
func TestBeatsOfALostWriteDoNotComeAgain(t *testing.T) {
	t.Parallel()
	srv := migrated(t)
	db, s := admin(t, srv), open(t, srv.DSN(""), calm)
	mode := firstMode(t, s)
	putMode(t, db, "n", mode)
	seen := make(map[uint64]bool)
	refresh := func() {
		t.Helper()
		arbitrate(t, s, chainSelf("n", 1), degrade.Action{Kind: degrade.Refresh, From: mode})
		beat := pollMode(t, s, "n").Members[0].Beat
		if seen[beat] {
			t.Errorf("beat %d again", beat)
		}
		seen[beat] = true
	}
	refresh()
	execute(t, db, "CREATE TABLE replica AS SELECT * FROM lock_permit")
	for range 3 {
		refresh()
		execute(t, db, "DELETE FROM lock_permit; INSERT INTO lock_permit SELECT * FROM replica")
	}
	execute(t, db, "DELETE FROM lock_permit")
	refresh()
}

// The rows of a takeover: that of another server, or one that has gone back.
func TestArbiterTakeover(t *testing.T) {
	t.Parallel()
	arbiterSessions(t, func(t *testing.T, db *sql.DB, s *mysqlstore.Store) {
		name := newChainName()
		self := chainSelf(name, 1)
		own := firstMode(t, s)
		strange := own
		strange.Server = "another"
		to := drainOf(own)
		to.Hard, to.Server, to.Epoch = true, "", 23
		done := to
		done.Server = own.Server
		for _, c := range []struct {
			what  string
			row   degrade.Mode
			from  degrade.Mode
			known uint16
			ok    bool
		}{
			{"its own row", own, own, own.Epoch, false},
			{"its own row, which has gone back", own, own, own.Epoch + 1, true},
			{"another's row", strange, strange, 0, true},
			{"another's row, which has gone back", strange, strange, own.Epoch + 1, true},
			{"a row that was taken over already", own, strange, own.Epoch + 1, false},
			{"a row that has changed", opened(drainOf(strange)), strange, 0, false},
		} {
			putMode(t, db, name, c.row)
			r := arbitrate(t, s, self, degrade.Action{Kind: degrade.Takeover, From: c.from, To: to, Known: c.known})
			if r.OK != c.ok || c.ok && r.Server != own.Server {
				t.Errorf("%s: %+v; wanted %v", c.what, r, c.ok)
			}
			want := c.row
			if c.ok {
				want = done
			}
			if got := pollMode(t, s, name).Mode; got != want {
				t.Errorf("%s: the mode is\n%+v, wanted\n%+v", c.what, got, want)
			}
		}
	})
}
