package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
)

// openTimeout is how long Open waits for the first connection.
const openTimeout = 2 * time.Second

// maxRingScale bounds ClientOption.RingScaleEachConn: a million places.
const maxRingScale = 20

// RecommendedOptions are client options that suit locks: short timeouts, no
// retries behind the store's back, no cache, one connection for all goroutines.
// One address means one server. For a Sentinel deployment give the sentinels'
// addresses and set Sentinel.MasterSet (and ForceSingleClient to false); for a
// Cluster give some of its nodes. Set credentials and TLS in the result.
func RecommendedOptions(addrs ...string) rueidis.ClientOption {
	o := rueidis.ClientOption{
		InitAddress:       slices.Clone(addrs),
		ForceSingleClient: len(addrs) == 1,
		ConnWriteTimeout:  time.Second,
		AlwaysPipelining:  true, // else a cancelled ctx is ignored on an idle connection
		DisableRetry:      true,
		PipelineMultiplex: -1, // one: an undo then hardly ever overtakes what it undoes
		DisableCache:      true,
		// Locks are small; the client's own default is 512 KiB each.
		ReadBufferEachConn:  64 << 10,
		WriteBufferEachConn: 64 << 10,
	}
	o.Dialer.Timeout = 500 * time.Millisecond
	o.Sentinel.Dialer.Timeout = 500 * time.Millisecond
	// A demoted master keeps its connections, so the sentinels' message is the
	// only other sign of it, and it can be missed.
	o.Sentinel.TopologyRefreshInterval = 5 * time.Second
	return o
}

// Open makes a store with a client of its own, see [OpenWith].
func Open(opt rueidis.ClientOption) (*Store, error) { return OpenWith(opt, Options{}) }

// OpenWith makes a store with a client of its own. It returns within about two
// seconds. Where no connection can be made by then, the store is returned all
// the same: it goes on dialing, with a growing pause of at most half a second,
// and until it is connected calls return [tierlock.ErrUnavailable] at once.
//
// It returns an error for options that cannot work, naming the field, and where
// the server answered that the configuration is wrong (a bad password, no
// permission): both wrap [tierlock.ErrMisconfigured].
//
// In opt, 0 means 500 ms for Dialer.Timeout and 1 s for ConnWriteTimeout.
func OpenWith(opt rueidis.ClientOption, o Options) (*Store, error) {
	if err := errors.Join(checkClient(opt), o.check()); err != nil {
		return nil, fmt.Errorf("redisstore: open: %w: %w", tierlock.ErrMisconfigured, err)
	}
	if opt.Dialer.Timeout == 0 {
		opt.Dialer.Timeout = 500 * time.Millisecond
	}
	if opt.ConnWriteTimeout == 0 {
		opt.ConnWriteTimeout = time.Second
	}
	// A call without a deadline would be retried for ever.
	opt.DisableRetry = true

	s := newStore(o)
	opt.DialCtxFn = s.dialer(opt)
	s.own = &opt
	s.trouble.Store(&trouble{fmt.Errorf("%w: not connected yet", tierlock.ErrUnavailable)})
	first := make(chan error, 1)
	s.spawn(func() { s.link(first) })
	limit := time.NewTimer(openTimeout)
	defer limit.Stop()
	select {
	case err := <-first:
		if err != nil && errors.Is(classed(err), tierlock.ErrMisconfigured) {
			s.Close()
			return nil, fmt.Errorf("redisstore: open: %w", classed(err))
		}
	case <-limit.C:
	}
	return s, nil
}

func checkClient(opt rueidis.ClientOption) error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("ClientOption."+format, args...))
		}
	}
	bad(len(opt.InitAddress) > 0, "InitAddress is empty")
	for _, addr := range opt.InitAddress {
		ok := addr != ""
		if opt.DialCtxFn == nil && opt.DialFn == nil {
			_, port, err := net.SplitHostPort(addr)
			ok = err == nil && port != ""
		}
		bad(ok, "InitAddress: %q is not host:port", addr)
	}
	bad(opt.Dialer.Timeout >= 0, "Dialer.Timeout is negative")
	bad(opt.ConnWriteTimeout >= 0, "ConnWriteTimeout is negative")
	bad(opt.Sentinel.TopologyRefreshInterval >= 0, "Sentinel.TopologyRefreshInterval is negative")
	bad(opt.SelectDB >= 0, "SelectDB is negative")
	// The client allocates 2^n places, and has no error for too many.
	bad(opt.RingScaleEachConn >= 0 && opt.RingScaleEachConn <= maxRingScale, "RingScaleEachConn is not in 0 to %d", maxRingScale)
	bad(opt.PipelineMultiplex <= rueidis.MaxPipelineMultiplex, "PipelineMultiplex is above %d", rueidis.MaxPipelineMultiplex)
	bad(!opt.ReplicaOnly, "ReplicaOnly: locks live on the primary")
	bad(opt.SendToReplicas == nil, "SendToReplicas: locks live on the primary")
	bad(len(opt.Standalone.ReplicaAddress) == 0, "Standalone.ReplicaAddress: locks live on the primary")
	bad(!opt.ForceSingleClient || len(opt.InitAddress) < 2, "ForceSingleClient: more than one InitAddress")
	bad(!opt.ForceSingleClient || opt.Sentinel.MasterSet == "", "ForceSingleClient: Sentinel.MasterSet is set")
	return errors.Join(errs...)
}

// lost notes that connections can be made no longer, and begins to try.
// Until it succeeds, calls fail at once instead of each waiting for a dial.
func (s *Store) lost(err error) {
	s.mu.Lock()
	known := s.closed || s.trouble.Load() != nil
	if !known {
		s.trouble.Store(&trouble{classed(err)})
	}
	s.mu.Unlock()
	if !known {
		s.spawn(func() { s.link(nil) })
	}
}

// link dials until the store is connected or closed. The first outcome is
// sent to first, if that is not nil.
func (s *Store) link(first chan<- error) {
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithRandomizationFactor(0.3),
		backoff.WithMaxElapsedTime(0))
	for {
		linked, err := s.linkOnce()
		if linked {
			s.setTrouble(nil)
		} else {
			s.setTrouble(classed(err))
		}
		if first != nil {
			first <- err
			first = nil
		}
		if linked {
			return
		}
		wait := time.NewTimer(pause.NextBackOff())
		select {
		case <-wait.C:
		case <-s.quit:
			wait.Stop()
			return
		}
	}
}

// setTrouble leaves a closed store closed.
func (s *Store) setTrouble(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
	case err == nil:
		s.trouble.Store(nil)
	default:
		s.trouble.Store(&trouble{err})
	}
}

// linkOnce makes the client where there is none, and tries it. It reports
// whether calls may be made: also where the server refused, since it then
// answers calls at once, and says why.
func (s *Store) linkOnce() (linked bool, err error) {
	if s.client == nil {
		if linked, err = s.connect(); !linked || err != nil {
			return linked, err
		}
	}
	if s.clocks.slots != nil {
		return true, nil // one node that is silent is not all of them
	}
	err = s.greet()
	return answersAtOnce(err), err
}

// greet asks the server for its clock, which no call knows yet. Not by a
// worker: what that noted as lost is what is tried here, and a store that is
// not used leaves no worker.
func (s *Store) greet() error {
	slotTags() // takes some 10 ms once; better now than in the first acquire
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		keyed := s.keyed.Load()
		err := s.askTime(ctx, probeKeys(keyed))
		if err != nil && ctx.Err() == nil && s.askTime(ctx, probeKeys(!keyed)) == nil {
			s.keyed.Store(!keyed)
			err = nil
		}
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.quit:
		return errClosed
	}
}

// probeKeys is what goes with a question that is about no lock. Nothing, at
// first: which keys this user may touch is not known before there is a lock. But
// there are proxies that want a key with each script, and close the connection,
// with all calls that are under way on it.
func probeKeys(keyed bool) []string {
	if keyed {
		return []string{"lock:"}
	}
	return nil
}

// askTime takes in the clock of the one node of a client that is not a Cluster's.
func (s *Store) askTime(ctx context.Context, keys []string) error {
	era, asked := s.clocks.era.Load(), time.Now()
	msg, err := s.client.Do(caller{ctx, aWorker}, probeScript.byText(s.client.B(), keys, nil)).ToMessage()
	if err != nil {
		return err
	}
	server, _, err := readProbe(msg)
	if err == nil {
		s.clocks.one.Learn(s.local(asked), s.local(time.Now()), server, era)
	}
	return err
}

// connect makes the client.
func (s *Store) connect() (linked bool, err error) {
	type made struct {
		client rueidis.Client
		err    error
	}
	result := make(chan made, 1)
	go func() {
		client, err := rueidis.NewClient(*s.own)
		result <- made{client, err}
	}()
	select {
	case m := <-result:
		if m.client == nil {
			return false, m.err
		}
		s.mu.Lock()
		closed := s.closed
		if !closed {
			s.adopt(m.client)
		}
		s.mu.Unlock()
		if closed {
			m.client.Close()
			return false, errClosed
		}
		return answersAtOnce(m.err), m.err
	case <-s.quit:
		// The client cannot be told to stop dialing; it ends with its timeout.
		go func() {
			if m := <-result; m.client != nil {
				m.client.Close()
			}
		}()
		return false, errClosed
	}
}

// answersAtOnce tells whether calls may be let through after this outcome:
// those that fail will fail at once, and the first that does not is the proof
// that the server is back.
func answersAtOnce(err error) bool {
	if err == nil {
		return true
	}
	var answer *rueidis.RedisError
	if errors.As(err, &answer) {
		return true
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && !op.Timeout() // refused
}
