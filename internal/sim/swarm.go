package sim

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Swarm is one random mixture of faults that befall two servers and those who use
// them. Which kinds there are in it, and how many of them, is up to the seed: a
// mixture of everything at all times would hide what only some of them do.
type Swarm struct {
	Redis *Redis
	MySQL *MySQL
	// Longest is the longest that a fault lasts.
	Longest time.Duration
	// Usual is what each way does while nothing is wrong with it.
	Usual Faults
	// Kinds are those that there may be; 0 means all.
	Kinds FaultKinds
	Logf  func(format string, args ...any)

	mu      sync.Mutex
	rng     *rand.Rand
	kinds   []FaultKinds // in this mixture
	pause   time.Duration
	redis   []*RedisStore
	mysql   []*MySQLStore
	healing sync.WaitGroup
	stop    chan struct{}
}

// FaultKinds is a set of kinds of faults.
type FaultKinds uint

// The kinds of faults.
const (
	RedisOutage   FaultKinds = 1 << iota // nobody reaches Redis
	RedisPause                           // Redis stops, and goes on
	RedisFailover                        // with or without its latest data; the old one answers for a while
	RedisCut                             // one client is cut off from Redis, one way or both
	MySQLOutage
	MySQLPause
	MySQLFailover // to another server, with all that was committed
	MySQLReadOnly
	MySQLCut
	Noise // requests and replies are lost, late, double

	AllFaults = 1<<iota - 1

	// RedisStep is not among AllFaults: Redis's clock is stepped forward. A client
	// that is made after a step may follow it, so none may be made meanwhile.
	RedisStep FaultKinds = AllFaults + 1
)

var faultNames = map[FaultKinds]string{
	RedisOutage: "redis outage", RedisPause: "redis pause", RedisFailover: "redis failover", RedisCut: "redis cut",
	MySQLOutage: "mysql outage", MySQLPause: "mysql pause", MySQLFailover: "mysql failover", MySQLReadOnly: "mysql read-only",
	MySQLCut: "mysql cut", Noise: "noise", RedisStep: "redis clock step",
}

// Start begins to make faults, by the seed, until Stop. The servers' clocks are
// off, and go wrong by up to a hundredth, from the start.
func (s *Swarm) Start(seed uint64) {
	s.rng = rand.New(rand.NewPCG(seed, 0x5a))
	s.stop = make(chan struct{})
	if s.Kinds == 0 {
		s.Kinds = AllFaults
	}
	for k := FaultKinds(1); k <= RedisStep; k <<= 1 {
		if s.Kinds&k != 0 && s.rng.IntN(3) > 0 {
			s.kinds = append(s.kinds, k)
		}
	}
	s.pause = time.Duration((0.1 + s.rng.Float64()) * float64(s.Longest)) // between two, on average
	ppm := func() int64 { return s.rng.Int64N(20_001) - 10_000 }
	s.Redis.SetClock(time.Duration(s.rng.Int64N(int64(time.Hour))), ppm())
	s.MySQL.SetClock(time.Duration(s.rng.Int64N(int64(time.Hour))), ppm())
	for _, k := range s.kinds {
		s.Logf("the swarm has %s", faultNames[k])
	}
	s.healing.Go(func() {
		for len(s.kinds) > 0 {
			if !s.sleep(time.Duration(s.random() * 2 * float64(s.pause))) {
				return
			}
			s.fault()
		}
	})
}

// Join takes in a process's two clients, Leave takes them out.
func (s *Swarm) Join(r *RedisStore, m *MySQLStore) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.redis, s.mysql = append(s.redis, r), append(s.mysql, m)
	r.SetFaults(s.Usual)
	m.SetFaults(s.Usual)
}

// Leave takes out those of a process that has ended.
func (s *Swarm) Leave(r *RedisStore) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.redis {
		if s.redis[i] == r {
			s.redis = append(s.redis[:i:i], s.redis[i+1:]...)
			s.mysql = append(s.mysql[:i:i], s.mysql[i+1:]...)
			return
		}
	}
}

// Stop ends all faults, and returns when everything works again, but for what is
// still under way.
func (s *Swarm) Stop() {
	close(s.stop)
	s.healing.Wait()
	s.Redis.KillOld()
	s.Redis.Resume()
	s.MySQL.Resume()
	s.MySQL.SetReadOnly(false)
	s.Logf("the swarm is over")
}

// Random is the swarm's randomness, for what else a test leaves to the seed.
func (s *Swarm) Random() float64 { return s.random() }

func (s *Swarm) random() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.Float64()
}

// lasting is how long a fault lasts: mostly short, seldom as long as may be.
func (s *Swarm) lasting() time.Duration {
	f := s.random()
	return time.Duration(f * f * float64(s.Longest))
}

// sleep reports whether the swarm goes on.
func (s *Swarm) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.stop:
		return false
	}
}

// until heals later, or at once when the swarm stops.
func (s *Swarm) until(d time.Duration, heal func()) {
	s.healing.Go(func() {
		s.sleep(d)
		heal()
	})
}

func (s *Swarm) fault() {
	kind := s.kinds[int(s.random()*float64(len(s.kinds)))]
	d := s.lasting()
	s.Logf("%s for %v", faultNames[kind], d)
	s.mu.Lock()
	redis, mysql := append([]*RedisStore(nil), s.redis...), append([]*MySQLStore(nil), s.mysql...)
	s.mu.Unlock()
	if len(redis) == 0 {
		return
	}
	one := int(s.random() * float64(len(redis)))
	switch kind {
	case RedisOutage:
		s.link(s.cut(), d, ofRedis(redis)...)
	case MySQLOutage:
		s.link(s.cut(), d, ofMySQL(mysql)...)
	case RedisCut:
		s.link(s.cut(), d, redis[one])
	case MySQLCut:
		s.link(s.cut(), d, mysql[one])
	case RedisPause:
		s.Redis.Pause()
		s.until(d, s.Redis.Resume)
	case RedisStep:
		s.Redis.Step(d)
	case MySQLPause:
		s.MySQL.Pause()
		s.until(d, s.MySQL.Resume)
	case MySQLReadOnly:
		s.MySQL.SetReadOnly(true)
		s.until(d, func() { s.MySQL.SetReadOnly(false) })
	case MySQLFailover:
		s.MySQL.Failover(0)
	case RedisFailover:
		loss := time.Duration(0)
		if s.random() < 0.7 {
			loss = time.Duration(s.random() * float64(10*time.Second))
		}
		s.Redis.Failover(loss)
		for _, r := range redis {
			s.until(time.Duration(s.random()*float64(d)), r.Follow)
		}
		s.until(d, s.Redis.KillOld)
	case Noise:
		f := s.Usual
		f.LoseRequest, f.LoseReply, f.Double = 0.3*s.random(), 0.3*s.random(), 0.3*s.random()
		f.Late, f.LateBy = 0.3*s.random(), time.Duration(s.random()*float64(20*time.Second))
		f.Jitter += time.Duration(s.random() * float64(500*time.Millisecond))
		if s.random() < 0.5 {
			s.link(f, d, ofRedis(redis)...)
		}
		if s.random() < 0.5 {
			s.link(f, d, ofMySQL(mysql)...)
		}
	}
}

// cut is a partition: of requests, of replies or of both.
func (s *Swarm) cut() Faults {
	f := s.Usual
	which := s.random()
	f.CutRequests, f.CutReplies = which < 0.7, which > 0.4
	return f
}

// linked are the clients of either server.
type linked interface{ SetFaults(f Faults) }

func ofRedis(all []*RedisStore) (l []linked) {
	for _, r := range all {
		l = append(l, r)
	}
	return l
}

func ofMySQL(all []*MySQLStore) (l []linked) {
	for _, m := range all {
		l = append(l, m)
	}
	return l
}

// link has ways do something for a time. The last fault of several counts, and the
// first to heal heals.
func (s *Swarm) link(f Faults, d time.Duration, ways ...linked) {
	for _, w := range ways {
		w.SetFaults(f)
	}
	s.until(d, func() {
		for _, w := range ways {
			w.SetFaults(s.Usual)
		}
	})
}
