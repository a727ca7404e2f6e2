package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/bound"
	"github.com/tierlock/tierlock/internal/contract"
)

const (
	// maxIdle is how many workers wait for calls.
	maxIdle = 256
	// maxStuck is how many calls may be left behind by callers that gave up.
	// They end when the client notices that its connection is dead; until
	// then each occupies a goroutine and a place in the client's queue.
	maxStuck = 4096
	// maxGathered is how many calls go into one pipeline: below the length from
	// which the client dials a connection for it.
	maxGathered = 512
	// slice is a little less than what Go's scheduler lets a goroutine run at a
	// stretch while others wait.
	slice = 9 * time.Millisecond
)

// call is one use of the client, by a worker, with a caller that may leave
// before it ends.
//
// A client's own call can outlast its ctx: behind a dial that somebody else
// began, in a full queue, in a read on an idle connection. So it runs on
// another goroutine, which the caller stops waiting for. Workers are kept,
// since that costs two switches of goroutines only: less than a ctx with a
// deadline, which the client then need not have.
//
// Where all calls go to one server, a worker takes all that have gathered since
// the last one did, and sends them at once. Under load this saves the client a
// write, and the server a read, for most calls; a lone call waits for nothing.
type call struct {
	cmd   rueidis.Completed
	multi []rueidis.Completed // instead of cmd, where not nil

	res  rueidis.RedisResult
	many []rueidis.RedisResult

	// settled becomes callDone or callLeft, once: whoever is second knows.
	settled atomic.Int32
	done    chan struct{} // holds one value when settled is callDone
	timer   *time.Timer
}

const (
	callDone = iota + 1 // the answer is the caller's
	callLeft            // nobody waits for the answer
)

// do runs one command, at most until the given time.
func (s *Store) do(ctx context.Context, until time.Time, cmd rueidis.Completed) (rueidis.RedisResult, error) {
	if res, done, err := s.doAlone(ctx, until, cmd); done {
		return res, err
	}
	c := s.takeCall()
	c.cmd = cmd
	if err := s.await(ctx, until, c); err != nil {
		return rueidis.RedisResult{}, err
	}
	res := c.res
	s.putCall(c)
	return res, nil
}

// doMulti is do for several commands in one round trip.
func (s *Store) doMulti(ctx context.Context, until time.Time, cmds []rueidis.Completed) ([]rueidis.RedisResult, error) {
	c := s.takeCall()
	c.multi = cmds
	if err := s.await(ctx, until, c); err != nil {
		return nil, err
	}
	res := c.many
	s.putCall(c)
	return res, nil
}

// await hands c to a worker and waits. With an error c belongs to the worker.
func (s *Store) await(ctx context.Context, until time.Time, c *call) error {
	// The timer here serves for a deadline of ctx as well.
	within, deadline := bound.Split(ctx)
	if within.Err() != nil {
		return contract.Ended(within)
	}
	byCtx := !deadline.IsZero() && deadline.Before(until)
	if byCtx {
		until = deadline
	}
	left := time.Until(until)
	if left <= 0 {
		return s.over(byCtx)
	}
	if s.stuck.Load() >= maxStuck {
		return errStuck
	}
	if !s.send(c) {
		return errClosed
	}
	c.timer.Reset(left)
	var err error
	select {
	case <-c.done:
		c.timer.Stop()
		return nil
	case <-within.Done():
		c.timer.Stop()
		err = contract.Ended(ctx)
	case <-c.timer.C:
		err = s.over(byCtx)
	}
	if !c.settled.CompareAndSwap(0, callLeft) {
		// The answer came at the same moment. It is used: it may be a grant.
		<-c.done
		return nil
	}
	s.stuck.Add(1)
	return err
}

// over is the error of a call whose time is over, by the ctx or by the store's
// own limit.
func (s *Store) over(byCtx bool) error {
	if byCtx {
		return context.DeadlineExceeded
	}
	return s.noAnswer()
}

func (s *Store) noAnswer() error {
	return fmt.Errorf("%w: no answer within %v", tierlock.ErrUnavailable, s.timeout)
}

// send gives c to a worker; false if the store is closed.
func (s *Store) send(c *call) bool {
	s.lone.calls.Add(1)
	if !s.gathers || c.multi != nil {
		return s.hand(c)
	}
	s.gather.Lock()
	s.gathered = append(s.gathered, c)
	called := s.called
	s.called = true
	s.gather.Unlock()
	if called || s.hand(nil) {
		return true
	}
	return false
}

// hand gives an idle worker, or a new one, a call to perform, or nil to see to
// those that have gathered.
func (s *Store) hand(c *call) bool {
	select {
	case s.calls <- c:
		return true
	default:
		return s.spawn(func() { s.work(c) })
	}
}

func (s *Store) work(c *call) {
	for {
		if c != nil {
			s.perform(c)
		} else {
			s.performGathered()
		}
		if s.idle.Add(1) > maxIdle {
			s.idle.Add(-1)
			return
		}
		select {
		case c = <-s.calls:
			s.idle.Add(-1)
		case <-s.quit:
			return
		}
	}
}

func (s *Store) perform(c *call) {
	if c.multi != nil {
		c.many = s.useMulti(c.multi)
		s.learnFrom(c.many)
	} else {
		s.asWorker(func(ctx context.Context) rueidis.RedisResult {
			c.res = s.client.Do(ctx, c.cmd)
			return c.res
		})
		s.learnFrom([]rueidis.RedisResult{c.res})
	}
	s.settle(c)
}

// performGathered sends the calls that have gathered as one pipeline.
func (s *Store) performGathered() {
	s.yield()
	s.gather.Lock()
	batch, rest := s.gathered, []*call(nil)
	if len(batch) > maxGathered {
		batch, rest = batch[:maxGathered:maxGathered], batch[maxGathered:]
	}
	if s.gathered = rest; rest == nil {
		s.gathered, s.emptied = s.emptied, nil
	}
	s.called = rest != nil
	s.gather.Unlock()
	if rest != nil {
		s.hand(nil)
	}
	switch len(batch) {
	case 0:
	case 1:
		s.perform(batch[0])
	default:
		cmds := make([]rueidis.Completed, len(batch))
		for i, c := range batch {
			cmds[i] = c.cmd
		}
		results := s.useMulti(cmds)
		s.learnFrom(results)
		for i, c := range batch {
			c.res = results[i]
			s.settle(c)
		}
	}
	clear(batch)
	s.gather.Lock()
	s.emptied = batch[:0]
	s.gather.Unlock()
}

// yield lets those come first who can run now and are about to make a call: under
// load this makes the pipeline long, else it costs nothing.
//
// But whoever computes and yields to nobody has the processor for some 10 ms, each
// of them, and a call would wait for them once more than it has to. So a yield that
// took as long as that is followed by a time without, and they take up a twentieth
// at most.
func (s *Store) yield() {
	began := time.Since(s.made)
	if began < time.Duration(s.noYield.Load()) {
		return
	}
	runtime.Gosched()
	ended := time.Since(s.made)
	if took := ended - began; took >= slice {
		s.noYield.Store(int64(ended + 20*took))
	}
}

func (s *Store) useMulti(cmds []rueidis.Completed) (results []rueidis.RedisResult) {
	s.asWorker(func(ctx context.Context) rueidis.RedisResult {
		results = s.client.DoMulti(ctx, cmds...)
		return results[0]
	})
	return results
}

// learnFrom draws the conclusions from the answers to one use of the client.
func (s *Store) learnFrom(results []rueidis.RedisResult) {
	for i := range results {
		if broken := results[i].NonRedisError(); broken != nil {
			s.broke(broken)
			return
		}
		if readOnly(results[i].Error()) {
			s.redial(results[i].Error())
			return
		}
	}
}

// settle gives the answer to the caller, if it still waits.
func (s *Store) settle(c *call) {
	s.lone.calls.Add(-1)
	if c.settled.CompareAndSwap(0, callDone) {
		c.done <- struct{}{}
		return
	}
	s.stuck.Add(-1)
}

// broke draws the conclusions from a call that failed below Redis.
func (s *Store) broke(err error) {
	s.clocks.era.Add(1) // the next connection may lead to another server
	if s.single && slowDial(err) {
		s.lost(err)
		return
	}
	if s.clocks.slots != nil {
		s.hub.lookOnce() // another node may have taken over
	}
	s.askClock()
}

// slowDial tells a connection that could not be made, and cost its time. A
// refused one costs none: the client may try again with each call. Without a
// deadline of the caller's, only dialing ends with DeadlineExceeded.
func slowDial(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && op.Timeout()
}

func (s *Store) takeCall() *call {
	if c, ok := s.spare.Get().(*call); ok {
		return c
	}
	c := &call{done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	c.timer.Stop()
	return c
}

// putCall is for calls whose answer was taken: a worker may still hold any
// other.
func (s *Store) putCall(c *call) {
	c.cmd, c.multi = rueidis.Completed{}, nil
	c.res, c.many = rueidis.RedisResult{}, nil
	c.settled.Store(0)
	s.spare.Put(c)
}

// spawn starts a goroutine of the store's, unless it is closed.
func (s *Store) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.workers.Add(1)
	go func() {
		defer s.workers.Done()
		f()
	}()
	return true
}
