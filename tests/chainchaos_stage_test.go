package tests_test

import (
	"context"
	"crypto/tls"
	"database/sql"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock/internal/rig"
	"github.com/tierlock/tierlock/mysqlstore"
	"github.com/tierlock/tierlock/redisstore"
)

// chainStage is what workers are on: a MySQL, and a Redis that is one server, or a
// primary with replicas under Sentinel. Each worker has its own proxies to both.
type chainStage struct {
	t        *testing.T
	mysql    *rig.MariaDBServer
	replica  *rig.MariaDBServer // of it, nil where it has none, or none any more
	alone    *rig.RedisServer
	sentinel *rig.Sentinel // nil where Redis is alone
	past     *rig.Proxy    // to MySQL, without faults: past those of the workers
	db       *sql.DB       // by it

	links [2 * chainProcesses][]*rig.Proxy // by chainLink: to each server of the store
	down  *rig.RedisServer                 // that is stopped, or was killed
	// mysqlDown: it has to be started.
	redisDown, mysqlDown bool
}

// kindOf is what kind of Redis a seed has, and how soon workers call it down: before
// Sentinel has made another primary, or after.
func kindOf(seed uint64) (sentinel bool, suspect time.Duration) {
	switch seed % 4 {
	case 2:
		return true, switchTimes.Suspect
	case 3:
		return true, 1200 * time.Millisecond
	}
	return false, switchTimes.Suspect
}

// newChainStage starts the servers; with replica MySQL can fail over once.
func newChainStage(t *testing.T, sentinel, replica bool) *chainStage {
	s := &chainStage{t: t}
	if sentinel {
		s.sentinel = rig.StartSentinel(t)
	} else {
		s.alone = rig.Redis(t)
	}
	if replica {
		s.mysql, s.replica = replicated(t)
	} else {
		s.mysql = migratedServer(t)
	}
	s.past = rig.NewProxy(t, mysqlAddr(s.mysql))
	s.db = mysqlPool(t, s.mysql.DSNVia(s.past.Addr, "")).DB
	execSQL(t, s.db, registerSchema)
	execSQL(t, s.db, mysqlstore.GuardSchema())
	for i, res := range chainChaosResources {
		for _, key := range chainKeys(i) {
			for how := range registers {
				execSQL(t, s.db, "INSERT INTO register VALUES (?,0,0)", res.Name+"-"+key+"-"+how)
			}
		}
	}
	for i := range chainProcesses {
		for _, n := range s.nodes() {
			s.links[chainLink(i, 0)] = append(s.links[chainLink(i, 0)], rig.NewProxy(t, n.Addr))
		}
		s.links[chainLink(i, 1)] = []*rig.Proxy{rig.NewProxy(t, mysqlAddr(s.mysql))}
	}
	return s
}

func (s *chainStage) nodes() []*rig.RedisServer {
	if s.sentinel == nil {
		return []*rig.RedisServer{s.alone}
	}
	return s.sentinel.Nodes
}

// primary is the server that is to be hit, or looked at.
func (s *chainStage) primary() *rig.RedisServer {
	if s.sentinel == nil {
		return s.alone
	}
	if p := s.sentinel.Primary(); p != nil {
		return p
	}
	return s.sentinel.Nodes[0]
}

// all are the proxies to both stores of all processes.
func (s *chainStage) all() (all []*rig.Proxy) {
	for _, l := range s.links {
		all = append(all, l...)
	}
	return all
}

// aim puts the ways of a process into its configuration.
func (s *chainStage) aim(cfg *chainChaosConfig, process int) {
	cfg.MySQL = s.mysql.DSNVia(s.links[chainLink(process, 1)][0].Addr, mysqlParams)
	cfg.Direct = s.mysql.DSNVia(s.past.Addr, "timeout=500ms&readTimeout=1s&writeTimeout=1s&clientFoundRows=true")
	to := s.links[chainLink(process, 0)]
	if s.sentinel == nil {
		cfg.Redis = []string{to[0].Addr}
		return
	}
	cfg.Redis, cfg.Master, cfg.Via = s.sentinel.Addrs(), s.sentinel.Master, map[string]string{}
	for i, n := range s.nodes() {
		cfg.Via[n.Addr] = to[i].Addr
	}
}

// openVia opens the store that aim has described. The sentinels tell the servers' own
// addresses, so each dial is turned to the process's proxy; those to the sentinels go
// straight.
func openVia(cfg chainChaosConfig) (*redisstore.Store, error) {
	if cfg.Master == "" {
		return openStore(cfg.Redis[0])
	}
	opt := redisstore.RecommendedOptions(cfg.Redis...)
	opt.Sentinel = rueidis.SentinelOption{MasterSet: cfg.Master, Dialer: net.Dialer{Timeout: 500 * time.Millisecond}, TopologyRefreshInterval: 5 * time.Second}
	opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if via := cfg.Via[addr]; via != "" {
			addr = via
		}
		return d.DialContext(ctx, "tcp", addr)
	}
	return redisstore.Open(opt)
}

// do does a step that is about a link or a server, and reports whether it was one.
func (s *chainStage) do(st step) bool {
	links := func(f func(*rig.Proxy)) {
		for _, p := range s.links[st.Where] {
			f(p)
		}
	}
	switch st.What {
	case setFault:
		links(func(p *rig.Proxy) { p.Set(st.Dir, st.Fault) })
	case reset:
		links(func(p *rig.Proxy) { p.Reset(st.Dir) })
	case cut:
		links((*rig.Proxy).Cut)
	case refuse:
		links((*rig.Proxy).Refuse)
	case accept:
		links((*rig.Proxy).Accept)
	case pauseServer:
		s.down = s.primary()
		s.down.Pause()
	case resumeServer:
		s.down.Resume()
	case crashServer:
		s.down = s.primary()
		s.down.Kill()
		s.redisDown = true
	case startServer:
		s.down.Start()
		s.redisDown = false
	case pauseMySQL:
		s.mysql.Pause()
	case resumeMySQL:
		s.mysql.Resume()
	case crashMySQL:
		s.mysql.Kill()
		s.mysqlDown = true
	case closeMySQL:
		s.mysql.Stop()
		s.mysqlDown = true
	case startMySQL:
		if s.mysqlDown { // else there was a failover meanwhile
			s.mysql.Start()
			s.mysqlDown = false
		}
	case failOverMySQL:
		s.failOver()
	default:
		return false
	}
	return true
}

// heal ends all faults.
func (s *chainStage) heal() {
	if s.redisDown {
		s.down.Start()
	}
	if s.mysqlDown {
		s.mysql.Start()
	}
	for _, n := range s.nodes() {
		n.Resume()
	}
	s.mysql.Resume()
	for _, p := range s.all() {
		p.Set(rig.ToServer, rig.Fault{})
		p.Set(rig.ToClient, rig.Fault{})
		p.Accept()
	}
	if s.sentinel != nil {
		s.sentinel.Healthy()
	}
}

// leavesNothing checks that no lock is held in either store, but for what those that
// were killed have left, which ends on time.
func (s *chainStage) leavesNothing() {
	t := s.t
	t.Helper()
	redis := s.primary()
	rig.Eventually(t, longestChainTTL+patience, "no lock is left in Redis", func() bool {
		for _, key := range redis.Do("KEYS", "lock:*}").([]any) {
			// Fence records live for a minute.
			if k := key.(string); strings.HasPrefix(k, "lock:"+namespace+":{") && !strings.HasSuffix(k, ":fence") {
				return false
			}
		}
		return true
	})
	for _, key := range redis.Do("KEYS", "*").([]any) {
		if ms := redis.Int("PTTL", key.(string)); ms == -1 {
			t.Errorf("key %s has no TTL", key)
		}
	}
	// By now each worker has taken and freed each key, and what it had to undo is undone.
	// Nothing is left then but what comes late: an acquire, or an adoption, that its
	// caller gave up, and those are refused a CallTimeout after they were begun. They last for
	// a TTL. So what is there after that, and another 20 seconds, somebody renews; what
	// the workers say at the end may tell who, so it is not fatal.
	held := func() int {
		return countSQL(t, s.db, "SELECT COUNT(*) FROM lock_record WHERE namespace=? AND expire_at > UTC_TIMESTAMP(6)", namespace)
	}
	if held() > 0 {
		t.Log("at first there is in MySQL:")
		s.describeMySQL()
	}
	for end := time.Now().Add(longestChainTTL + patience); held() > 0 && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	if n := held(); n > 0 {
		t.Errorf("%d locks are left in MySQL", n)
		s.describeMySQL()
	}
}

// describe logs what is left where.
func (s *chainStage) describe() {
	for _, p := range s.all() {
		s.t.Log(p.Describe())
	}
	s.describeMySQL()
}

func (s *chainStage) describeMySQL() {
	for _, query := range []string{
		"SELECT CONCAT_WS(' ','now',UTC_TIMESTAMP(6),'held',business_id,lease_id,expire_at,create_time,fence,epoch,token) FROM lock_record WHERE namespace='" + namespace + "' AND expire_at > UTC_TIMESTAMP(6)",
		"SELECT CONCAT_WS(' ','mode',epoch,phase,tier,incarnation) FROM lock_mode",
		"SELECT CONCAT_WS(' ','member',member,pid,epoch,acked_epoch,beat) FROM lock_permit",
	} {
		rows, err := s.db.Query(query)
		if err != nil {
			s.t.Logf("%s: %v", query, err)
			continue
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				line = fmt.Sprint(err)
			}
			s.t.Log(line)
		}
		rows.Close()
	}
}
