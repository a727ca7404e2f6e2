package storetest

import (
	"context"
	"slices"
	"sync"

	"github.com/tierlock/tierlock"
)

// data is the incarnation of each namespace of a check. A place names that of the
// check's own namespace; in a call about a name of another it stands for that one's.
type data struct {
	of string // the check's own namespace

	mu     sync.Mutex
	each   map[string]string
	common bool // it is the same for all, so nothing has to be noted
}

// know notes the data of a namespace, the first time.
func (d *data) know(namespace string, probe func() string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.common || d.each[namespace] != "" {
		return
	}
	if d.each == nil {
		d.each = make(map[string]string)
	}
	d.each[namespace] = probe()
	d.common = d.each[namespace] == d.of
}

func (d *data) place(n tierlock.Name, p tierlock.Place) tierlock.Place {
	d.mu.Lock()
	defer d.mu.Unlock()
	if there := d.each[n.Namespace]; there != "" && p.Incarnation != "" && p.Incarnation == d.of {
		p.Incarnation = there
	}
	return p
}

// Acquire is the store's, and so are the others.
func (s *side) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	req.Place = s.data.place(req.Name, req.Place)
	return s.Store.Acquire(ctx, req)
}

func (s *side) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	reqs = slices.Clone(reqs)
	for i := range reqs {
		reqs[i].Place = s.data.place(reqs[i].Name, reqs[i].Place)
	}
	return s.Store.Renew(ctx, reqs)
}

func (s *side) Release(ctx context.Context, req tierlock.ReleaseRequest) (tierlock.Ownership, error) {
	req.Place = s.data.place(req.Name, req.Place)
	return s.Store.Release(ctx, req)
}

func (s *side) Adopt(ctx context.Context, reqs []tierlock.AdoptRequest) []tierlock.RenewResult {
	reqs = slices.Clone(reqs)
	for i := range reqs {
		reqs[i].Place = s.data.place(reqs[i].Name, reqs[i].Place)
	}
	return s.Store.(tierlock.Chained).Adopt(ctx, reqs)
}
