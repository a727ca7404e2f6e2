package redisstore_test

import (
	"net"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/redisstore"
	"github.com/tierlock/tierlock/storetest"
)

// Scenario 70: whatever the deployment, the contract is the same.
func TestConformance(t *testing.T) {
	resp2 := func(o *rueidis.ClientOption) { o.AlwaysRESP2 = true }
	for _, mode := range []struct {
		name   string
		start  func(testing.TB) ([]*rig.RedisServer, rueidis.ClientOption)
		change func(*rueidis.ClientOption)
	}{
		{"recommended", oneServer, nil},
		{"RESP2", oneServer, resp2},
		{"sentinel", func(t testing.TB) ([]*rig.RedisServer, rueidis.ClientOption) {
			d, opt := steadySentinel(t)
			return d.Nodes, opt
		}, nil},
		// Scripts over two slots would panic, and the clock is kept by slot.
		{"cluster", threeMasters, nil},
		{"cluster, RESP2", threeMasters, resp2},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			servers, opt := mode.start(t)
			if mode.change != nil {
				mode.change(&opt)
			}
			storetest.Run(t, func(t *testing.T) storetest.Harness {
				return storetest.Harness{Open: func(t *testing.T) tierlock.Store { return connected(t, openWith(t, opt, calm)) }}
			})
			for _, srv := range servers {
				noEternalKeys(t, srv)
			}
		})
	}
}

func oneServer(t testing.TB) ([]*rig.RedisServer, rueidis.ClientOption) {
	srv := rig.Redis(t)
	return []*rig.RedisServer{srv}, patient(srv.Addr)
}

func threeMasters(t testing.TB) ([]*rig.RedisServer, rueidis.ClientOption) {
	c := steadyCluster(t)
	return c.Nodes, clusterOptions(c)
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

// A client of the caller's, with the client's own defaults, keeps the contract
// too, and stays open when the store is closed.
func TestConformanceOverAClientOfTheCallers(t *testing.T) {
	t.Parallel()
	srv := rig.Redis(t)
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		return storetest.Harness{Open: func(t *testing.T) tierlock.Store {
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{srv.Addr}, Dialer: net.Dialer{Timeout: 10 * time.Second}})
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
