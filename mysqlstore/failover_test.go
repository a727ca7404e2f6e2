package mysqlstore_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
)

var networks atomic.Int64

// movable is a pool whose new connections lead to whichever server is meant.
func movable(t *testing.T, first *rig.MariaDBServer) (db *sqlx.DB, move func(to *rig.MariaDBServer)) {
	t.Helper()
	var addr atomic.Value
	addr.Store(first.Addr)
	network := fmt.Sprint("movable", networks.Add(1))
	mysql.RegisterDialContext(network, func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr.Load().(string))
	})
	t.Cleanup(func() { mysql.DeregisterDialContext(network) })
	return pool(t, strings.Replace(first.DSN(""), "@tcp(", "@"+network+"(", 1)), func(to *rig.MariaDBServer) { addr.Store(to.Addr) }
}

// acquireUnderWay begins an acquire that the server does not get on with, and returns
// when it is there. (At a locked row it would be sent again and again: between two
// of these nothing is under way, and what happens to the connection is not noticed.)
func acquireUnderWay(t *testing.T, srv *rig.MariaDBServer, s *mysqlstore.Store, key string) <-chan error {
	t.Helper()
	db := admin(t, srv)
	conn, err := db.Conn(background)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	execute(t, conn, "LOCK TABLES lock_record WRITE")
	call := make(chan error, 1)
	go func() {
		_, err := s.Acquire(background, ask(key, newLease(), time.Hour))
		call <- err
	}()
	rig.Eventually(t, patience, "the call is under way", func() bool {
		return number(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE state='Waiting for table metadata lock'") == 1
	})
	return call
}

// After a failover the store asks what the new server is: one on which a late
// statement could not be told takes no locks, although the first was all right,
// and those that are held are kept. It does not matter whether a call was under
// way at the time.
func TestTheNextServerIsAskedToo(t *testing.T) {
	t.Parallel()
	for when, idle := range map[string]bool{"in a call": false, "idle": true} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			good, bad := rig.MariaDB(t), rig.MariaDB(t, "--sysdate-is-now")
			migrate(t, good)
			for _, q := range strings.Split(mysqlstore.Schema(), ";") {
				if strings.TrimSpace(q) != "" {
					execute(t, admin(t, bad), q)
				}
			}
			db, move := movable(t, good)
			s := mysqlstore.New(db, calm)
			t.Cleanup(s.Close)
			s.SetPace(200*time.Millisecond, time.Minute, time.Hour, time.Hour)
			mustAcquire(t, s, ask("k", "l", time.Hour))
			var call <-chan error
			if idle {
				register(s, 1)
			} else {
				call = acquireUnderWay(t, good, s, "busy")
			}
			// What the replica has of it.
			execute(t, admin(t, bad), insertRow, "k")
			execute(t, admin(t, bad), "UPDATE lock_record SET lease_id='l', expire_at=UTC_TIMESTAMP(6)+INTERVAL 1 HOUR")
			move(bad)
			good.Kill()
			if !idle {
				wantClass(t, "a call at the kill", <-call, tierlock.ErrUnavailable)
			}
			rig.Eventually(t, patience, "new locks are refused", func() bool {
				_, err := s.Acquire(t.Context(), ask("new", "l", time.Millisecond))
				return err != nil && strings.Contains(err.Error(), "sysdate-is-now")
			})
			_, err := s.Acquire(t.Context(), ask("new", "l", time.Hour))
			wantClass(t, "acquire", err, tierlock.ErrMisconfigured, "sysdate-is-now")
			if res := s.Renew(t.Context(), []tierlock.RenewRequest{{Name: name("k"), Lease: "l", TTL: time.Hour}}); res[0].Err != nil || res[0].State != tierlock.LeaseOwned {
				t.Errorf("renewal: %+v; wanted owned", res[0])
			}
			mustRelease(t, s, drop("k", "l"), tierlock.LeaseOwned)
		})
	}
}
