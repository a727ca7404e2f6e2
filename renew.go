package tierlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tierlock/tierlock/watchdog"
)

// renew is what the watchdog calls with the leases that are due. Each store gets
// its own, none waiting for another.
func (l *Locker) renew(ctx context.Context, batch []watchdog.Renewal) []error {
	errs := make([]error, len(batch))
	if l.chain == nil && len(l.stores) == 1 {
		l.renewAt(ctx, l.store, batch, errs, nil)
		return errs
	}
	at := make([]int, len(batch)) // the store of each, as it is now
	routes := make([]route, len(batch))
	for i, r := range batch {
		routes[i] = r.Lease.Value().(*hold).at()
		for j, b := range l.stores {
			if b == routes[i].backend {
				at[i] = j
			}
		}
	}
	var group sync.WaitGroup
	for j, b := range l.stores {
		var sub []watchdog.Renewal
		var where []route
		var index []int
		for i := range batch {
			if at[i] == j {
				sub, where, index = append(sub, batch[i]), append(where, routes[i]), append(index, i)
			}
		}
		if len(sub) == 0 {
			continue
		}
		group.Go(func() {
			subErrs := make([]error, len(sub))
			l.renewAt(ctx, b, sub, subErrs, where)
			for k, i := range index {
				errs[i] = subErrs[k]
			}
		})
	}
	group.Wait()
	return errs
}

// renewAt renews the leases of one store. routes are nil where there is no other.
func (l *Locker) renewAt(ctx context.Context, b *backend, batch []watchdog.Renewal, errs []error, routes []route) {
	reqs := make([]RenewRequest, len(batch))
	for i, r := range batch {
		h := r.Lease.Value().(*hold)
		reqs[i] = RenewRequest{Name: h.name, Lease: h.token.Lease, Explicit: h.explicit, TTL: r.TTL}
		if routes != nil {
			reqs[i].Place = routes[i].place
		}
	}
	parts := make([]*part, len(reqs)) // as they are before the call
	for i := range reqs {
		parts[i] = b.part(reqs[i].Name)
	}
	sent := time.Now()
	results := b.Renew(ctx, reqs)
	for i, r := range batch {
		switch {
		case i >= len(results):
			errs[i] = fmt.Errorf("%w: no result for a renewal", ErrUnavailable)
		case results[i].Err != nil:
			errs[i] = results[i].Err
		case results[i].State != LeaseOwned:
			errs[i] = &notHeldError{results[i].State}
		}
		if errs[i] != nil && !errors.Is(errs[i], watchdog.ErrNotHeld) {
			r.Lease.Value().(*hold).unanswered.Store(true)
		}
	}
	// One batch is one call to each part: it counts once, as a failure only if
	// nothing in it was answered.
	verdicts := make(map[*part]int, 1) // which renewal speaks for the part
	answered := func(i int) bool { return errs[i] == nil || errors.Is(errs[i], watchdog.ErrNotHeld) }
	for i, p := range parts {
		if said, seen := verdicts[p]; !seen || !answered(said) && answered(i) {
			verdicts[p] = i
		}
	}
	// The machine is told before the watchdog is.
	defer func() {
		for i, r := range batch {
			if h := r.Lease.Value().(*hold); h.chained != nil {
				errs[i] = h.chained.renewed(routes[i], r.Sent, r.TTL, errs[i])
			}
		}
	}()
	for p, i := range verdicts {
		var verdict error
		if !answered(i) {
			verdict = errs[i]
		}
		// A call that was cut short because belief was about to end says nothing.
		// (The watchdog's clock for the call began a moment before ours.)
		if verdict == nil || ctx.Err() == nil || time.Since(sent) >= l.cfg.CallTimeout*9/10 {
			p.report(reqs[i].Name, verdict)
		}
	}
}
