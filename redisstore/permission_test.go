package redisstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
)

// leastPermissions is what the package comment lists.
var leastPermissions = strings.Fields("~lock:test:* &lock:test:*" +
	" +eval +evalsha +time +get +set +getrange +del +pttl +pexpire" +
	" +zadd +zrem +zscore +zcard +zcount +zrange +zremrangebyscore" +
	" +publish +spublish +subscribe +ssubscribe +unsubscribe +sunsubscribe +ping")

// restricted is a store whose user may do what is least, and no more.
func restricted(t *testing.T, srv *rig.RedisServer) *redisstore.Store {
	t.Helper()
	permit(srv, leastPermissions...)
	opt := patient(srv.Addr)
	opt.Username, opt.Password = "app", "pw"
	return openWith(t, opt, calm)
}

func permit(srv *rig.RedisServer, rules ...string) {
	srv.Do(append([]string{"ACL", "SETUSER", "app", "reset", "on", ">pw"}, rules...)...)
}

func without(permission string) []string {
	return slices.DeleteFunc(slices.Clone(leastPermissions), func(r string) bool { return r == permission })
}

// Permissions as the package comment lists them are enough, for push as well,
// and nothing beyond them is tried.
func TestLeastPermissions(t *testing.T) {
	srv := rig.Redis(t)
	s := restricted(t, srv)
	w, err := s.Watch(t.Context(), name("k"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, explicit := range []bool{false, true} {
		lease := newLease()
		for range 2 {
			req := ask("k", lease, 30*time.Second)
			req.Explicit = explicit
			mustAcquire(t, s, req)
		}
		if rec, err := s.Inspect(t.Context(), name("k")); err != nil || !rec.Held {
			t.Fatalf("inspect: got %+v, %v", rec, err)
		}
		res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: lease, Explicit: explicit, TTL: time.Minute}})
		if res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
			t.Fatalf("renew: got %+v", res[0])
		}
		for _, keep := range []time.Duration{time.Millisecond, 0} {
			req := drop("k", lease)
			req.Explicit, req.Keep = explicit, keep
			if _, err := s.Release(t.Context(), req); err != nil {
				t.Fatalf("release: %v", err)
			}
		}
		rig.Eventually(t, patience, "the lock is free", func() bool { return srv.Int("EXISTS", keyOf("k")) == 0 })
		select {
		case <-w.C():
		case <-time.After(patience):
			t.Fatal("no signal of the release")
		}
	}
	for _, entry := range srv.Do("ACL", "LOG").([]any) {
		// The client introduces itself in a way that servers know from 7.2 on,
		// and does not mind a refusal.
		if text := fmt.Sprint(entry); !strings.Contains(text, "client|setinfo") {
			t.Errorf("the server denied something: %s", text)
		}
	}
}

// Each permission that is taken away is named by every operation that needs
// it, as a misconfiguration; all others go on. Without those for messages the
// locks work, and waiters poll.
func TestEachMissingPermissionIsNamed(t *testing.T) {
	srv := rig.Redis(t)
	admin := open(t, srv.Addr)
	missing := map[string]string{ // permission: what is refused
		"~lock:test:*":      "acquire again renew inspect release acquire+ again+ renew+ inspect+ release+",
		"+evalsha":          "acquire again renew release acquire+ again+ renew+ inspect+ release+",
		"+eval":             "acquire again renew release acquire+ again+ renew+ inspect+ release+ watch",
		"+time":             "acquire again acquire+ again+ renew+ inspect+ release+ watch",
		"+get":              "again inspect acquire+ again+ inspect+",
		"+set":              "acquire acquire+",
		"+getrange":         "renew release renew+ release+",
		"+del":              "release acquire+ release+",
		"+pttl":             "again renew inspect again+ renew+ inspect+ release+",
		"+pexpire":          "again renew acquire+ again+ renew+",
		"+zadd":             "acquire+ again+ renew+",
		"+zrem":             "release+",
		"+zscore":           "again+ renew+",
		"+zcard":            "again+",
		"+zcount":           "inspect+",
		"+zrange":           "release+",
		"+zremrangebyscore": "again+ release+",
		"&lock:test:*":      "watch",
		"+ssubscribe":       "watch",
		// Who may not publish has released all the same.
		"+spublish": "", "+publish": "", "+subscribe": "", "+unsubscribe": "", "+sunsubscribe": "", "+ping": "",
	}
	for _, p := range leastPermissions {
		refused, ok := missing[p]
		if !ok {
			t.Errorf("no row for %s", p)
			continue
		}
		s := restricted(t, srv) // one each: the connection for messages outlives a test of it
		permit(srv, without(p)...)
		for _, op := range strings.Fields("acquire again renew inspect release acquire+ again+ renew+ inspect+ release+ watch") {
			srv.Do("FLUSHALL")
			op, explicit := strings.CutSuffix(op, "+")
			ask := ask("k", newLease(), 30*time.Second)
			ask.Explicit = explicit
			drop := drop("k", ask.Token.Lease)
			drop.Explicit = explicit
			if op != "acquire" {
				mustAcquire(t, admin, ask)
				ask.TTL *= 2
			}
			if p == "+eval" {
				srv.Do("SCRIPT", "FLUSH") // else none is ever sent
			}
			var err error
			var got string
			switch op {
			case "acquire", "again":
				var res tierlock.AcquireResult
				res, err = s.Acquire(t.Context(), ask)
				got = fmt.Sprint(res.Granted)
			case "renew":
				res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: ask.Name, Lease: ask.Token.Lease, Explicit: explicit, TTL: time.Minute}})
				got, err = res[0].State.String(), res[0].Err
			case "inspect":
				var rec tierlock.Record
				rec, err = s.Inspect(t.Context(), ask.Name)
				got = fmt.Sprint(rec.Held)
			case "release":
				var state tierlock.Ownership
				state, err = s.Release(t.Context(), drop)
				got = state.String()
			case "watch":
				var w tierlock.Watch
				if w, err = s.Watch(t.Context(), ask.Name); err == nil {
					w.Close()
				}
			}
			what := fmt.Sprintf("without %s, %s, explicit %v", p, op, explicit)
			if explicit {
				op += "+"
			}
			switch {
			case !slices.Contains(strings.Fields(refused), op):
				if err != nil || got != "true" && got != "owned" && op != "watch" {
					t.Errorf("%s: got %s, %v; wanted it done", what, got, err)
				}
			case op == "watch":
				wantClass(t, what, err, tierlock.ErrUnavailable)
			default:
				wantClass(t, what, err, tierlock.ErrMisconfigured)
				_, named, _ := strings.Cut(err.Error(), "missing permission: ")
				named, _, _ = strings.Cut(named, ";")
				// Before 7.2 the line is known, which may hold two calls.
				if names := strings.Split(named, " or "); !slices.Contains(names, p) || len(names) > 2 {
					t.Errorf("%s: %v; wanted the permission named", what, err)
				}
			}
		}
	}
}

// At the start there is no namespace yet.
func TestMissingPermissionAtOpen(t *testing.T) {
	srv := rig.Redis(t)
	for _, p := range []string{"+eval", "+time"} {
		permit(srv, without(p)...)
		opt := patient(srv.Addr)
		opt.Username, opt.Password = "app", "pw"
		s, err := openRefused(opt, calm)
		wantClass(t, p, err, tierlock.ErrMisconfigured)
		if s != nil || !strings.Contains(err.Error(), "missing permission: "+p+"; all that are needed: ~lock:<namespace>:* ") {
			t.Errorf("without %s: got %v, %v", p, s, err)
		}
	}
}

// What servers of other versions say.
func TestPermissionHints(t *testing.T) {
	line := "@user_script:3: @user_script: 3: The user executing the script can't run this command or subcommand"
	for text, want := range map[string]string{
		"NOPERM this user has no permissions to run the 'pttl' command or its subcommand":                                     "+pttl",
		"NOPERM User app has no permissions to run the 'EVALSHA' command":                                                     "+evalsha",
		"NOPERM this user has no permissions to access one of the keys used as arguments":                                     "~lock:prod:*",
		"NOPERM No permissions to access a key":                                                                               "~lock:prod:*",
		"NOPERM this user has no permissions to access one of the channels used as arguments":                                 "&lock:prod:*",
		"NOPERM No permissions to access a channel":                                                                           "&lock:prod:*",
		"Error running script (call to f_" + redisstore.RenewDigest() + "): " + line:                                          "+pttl or +pexpire",
		"Error running script (call to f_" + strings.Repeat("0", 40) + "): " + line:                                           "?",
		"ACL failure in script: User app has no permissions to run the 'set' command script: ab":                              "+set",
		"ACL failure in script: User app has no permissions to access the 'lock:prod:{a/b}' key script: ab":                   "~lock:prod:*",
		"The user executing the script can't access at least one of the keys mentioned in the command arguments":              "~lock:prod:*",
		"The user executing the script can't run this command or subcommand script: x, on @user_script:3.":                    "?",
		"WRONGTYPE Operation against a key holding the wrong kind of value":                                                   "",
		"WRONGPASS invalid username-password pair or user is disabled.":                                                       "",
		"The user executing the script can't run this command script: " + redisstore.RenewDigest() + ", on @user_script:999.": "?",
	} {
		got := redisstore.PermissionHint("prod", text)
		if want == "" && got != "" || want != "" && !strings.HasPrefix(got, "missing permission: "+want+"; ") {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// A client that is to keep a cache, for a user that may not ask for it.
func TestCacheWithoutPermission(t *testing.T) {
	srv := rig.Redis(t)
	permit(srv, "+@all", "~*", "&*", "-client|tracking")
	opt := patient(srv.Addr)
	opt.Username, opt.Password, opt.DisableCache = "app", "pw", false
	s, err := openRefused(opt, calm)
	wantClass(t, "open with a cache", err, tierlock.ErrMisconfigured)
	for _, part := range []string{"missing permission: +client|tracking;", "DisableCache"} {
		if s != nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, %v; wanted an error that names %s", s, err, part)
		}
	}
	opt.DisableCache = true
	works(t, openWith(t, opt, calm))
}
