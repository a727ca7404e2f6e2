package tierlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/localstore"
)

// ranger is a store with fences, which grants ranges of them and tells what it was
// asked to update.
type ranger struct {
	*spy
	most int // of further fences

	mu      sync.Mutex
	last    uint64
	given   map[string]tierlock.AcquireResult // by lease and time of the grant
	updates []tierlock.UpdateRequest
	update  func(tierlock.UpdateRequest) error
	renewal atomic.Pointer[renewFunc] // replaces Renew, also in the middle of a test
}

type renewFunc func(context.Context, []tierlock.RenewRequest) []tierlock.RenewResult

func newRanger() *ranger {
	r := &ranger{spy: newSpy(localstore.NewSpace()), most: 1000, given: make(map[string]tierlock.AcquireResult)}
	r.acquire = func(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
		req.Fences = min(req.Fences, r.most)
		res, err := r.Store.Acquire(ctx, req)
		if err != nil || !res.Granted {
			return res, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		id := req.Token.Lease + res.Token.ServerTime.String() // of that grant
		if was, ok := r.given[id]; ok {
			return was, nil
		}
		res.Token.Seq = r.last + 1
		res.Token.Fence = 1<<49 | res.Token.Seq
		r.last += uint64(1 + res.Fences)
		r.given[id] = res
		return res, nil
	}
	r.renew = func(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
		if f := r.renewal.Load(); f != nil {
			return (*f)(ctx, reqs)
		}
		return r.Store.Renew(ctx, reqs)
	}
	return r
}

// renewBy replaces Renew by f; nil for the store's own.
func (r *ranger) renewBy(f renewFunc) {
	if f == nil {
		r.renewal.Store(nil)
		return
	}
	r.renewal.Store(&f)
}

// unanswered is a Renew of a store that is down.
func unanswered(_ context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	res := make([]tierlock.RenewResult, len(reqs))
	for i := range res {
		res[i].Err = tierlock.ErrUnavailable
	}
	return res
}

func (r *ranger) Guarantee() tierlock.Guarantee { return tierlock.FencedOnly }

func (r *ranger) Update(ctx context.Context, req tierlock.UpdateRequest) (tierlock.Ownership, error) {
	r.mu.Lock()
	r.updates = append(r.updates, req)
	r.mu.Unlock()
	if r.update != nil {
		if err := r.update(req); err != nil {
			return 0, err
		}
	}
	return r.Store.Update(ctx, req)
}

func (r *ranger) updated() []tierlock.UpdateRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]tierlock.UpdateRequest(nil), r.updates...)
}

// handed is a hold that was granted while another call waits behind it, so that it
// may be handed over.
type handed struct {
	t    *testing.T
	l    *tierlock.Locker
	hold *tierlock.Lock
	next <-chan result
}

// newHanded makes one of the resource, with a waiter behind it.
func newHanded(t *testing.T, l *tierlock.Locker, resource string, first, second []tierlock.Option) *handed {
	t.Helper()
	k := mustLock(t, l, resource, "1")
	h := &handed{t: t, l: l}
	a := lockAsync(bg, l, resource, "1", append(first, tierlock.UntilDone())...)
	synctest.Wait()
	h.next = lockAsync(bg, l, resource, "1", append(second, tierlock.UntilDone())...)
	synctest.Wait()
	mustUnlock(t, k)
	r := <-a
	if r.err != nil {
		t.Fatalf("Lock: %v", r.err)
	}
	h.hold = r.k
	return h
}

// want waits for the next and checks whether it has the lease of the hold.
func (h *handed) want(over bool) *tierlock.Lock {
	h.t.Helper()
	r := <-h.next
	if r.err != nil {
		h.t.Fatalf("Lock: %v", r.err)
	}
	was, is := h.hold.Token(), r.k.Token()
	if got := was.Lease == is.Lease; got != over {
		h.t.Errorf("handed over: %v, want %v", got, over)
	}
	if is.ID == was.ID || is.Fence <= was.Fence && is.Fence != 0 {
		h.t.Errorf("the next hold is %v, after %v", is, was)
	}
	return r.k
}

// unlocked is want after an unlock now.
func (h *handed) unlocked(over bool) *tierlock.Lock {
	h.t.Helper()
	mustUnlock(h.t, h.hold)
	return h.want(over)
}

// fenceOrder checks that fences rise in the order of the calls.
type fenceOrder struct {
	mu   sync.Mutex
	last uint64
}

func (f *fenceOrder) next(t *testing.T, tok tierlock.Token) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if tok.Fence <= f.last || tok.Fence != tok.Epoch<<49|tok.Seq {
		t.Errorf("fence %d of epoch %d and seq %d, after %d", tok.Fence, tok.Epoch, tok.Seq, f.last)
	}
	f.last = tok.Fence
}

// short is a lease that is renewed while it can still be handed over.
const short = 100 * time.Millisecond
