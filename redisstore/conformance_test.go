package redisstore_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
	"github.com/tierlock/tierlock/storetest"
)

func TestConformance(t *testing.T) {
	for _, mode := range []struct {
		name   string
		args   []string
		change func(*rueidis.ClientOption)
		noPush bool
	}{
		{"recommended", nil, func(*rueidis.ClientOption) {}, false},
		{"RESP2", nil, func(o *rueidis.ClientOption) { o.AlwaysRESP2 = true }, false},
		// One node with all slots: scripts over two slots would panic, and
		// the clock is kept by slot.
		{"cluster", cluster(t), func(o *rueidis.ClientOption) { o.ForceSingleClient = false }, true},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			srv := rig.Redis(t, mode.args...)
			if mode.args != nil {
				formCluster(t, srv)
			}
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				return storetest.Harness{
					Open: func(t *testing.T) tierlock.Store {
						opt := patient(srv.Addr)
						mode.change(&opt)
						return openWith(t, opt, calm)
					},
					NoPush: mode.noPush,
				}
			})
			noEternalKeys(t, srv)
		})
	}
}

// cluster is the arguments of a server in cluster mode. Its bus needs a port
// of its own: the default lies beyond the last port for some.
func cluster(t testing.TB) []string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return []string{"--cluster-enabled", "yes", "--cluster-port", port}
}

func formCluster(t testing.TB, srv *rig.RedisServer) {
	t.Helper()
	srv.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	rig.Eventually(t, 10*time.Second, "the cluster is up", func() bool {
		return strings.Contains(srv.Text("CLUSTER", "INFO"), "cluster_state:ok")
	})
}

// A client of the caller's, with the client's own defaults, keeps the contract
// too, and stays open when the store is closed.
func TestConformanceOverAClientOfTheCallers(t *testing.T) {
	t.Parallel()
	srv := rig.Redis(t)
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return storetest.Harness{Open: func(t *testing.T) tierlock.Store {
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{srv.Addr}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			s := redisstore.New(client, calm)
			t.Cleanup(func() {
				s.Close()
				if err := client.Do(background, client.B().Ping().Build()).Error(); err != nil {
					t.Errorf("the caller's client after Close: %v; wanted it open", err)
				}
			})
			return s
		}}
	})
	noEternalKeys(t, srv)
}
