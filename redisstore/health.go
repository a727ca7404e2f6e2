package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// Probe implements [tierlock.Chained]. It writes a key of the namespace, the marker,
// and reads the replication id of the primary that has taken it; with a Cluster client
// on each master, of which all have to answer. The incarnation is that id and a
// number from the marker, which is drawn anew where the marker has gone (FLUSHALL);
// on a Cluster it is all ids, sorted and joined by commas, and the loss of a marker
// makes the store unsafe for a minute. So does an eviction policy but noeviction with
// a limit of memory, or one that may not be read, for as long as it is seen. The
// marker lives for a week after the last probe, and has the epoch in it. It is one
// round trip; on a Cluster two, the first for the table of slots.
//
// The id changes where a replica is promoted, where a server restarts, and where
// the first replica attaches to a server, or it has had none for repl-backlog-ttl.
func (s *Store) Probe(ctx context.Context, req tierlock.ProbeRequest) (tierlock.ProbeResult, error) {
	until := time.Now().Add(s.timeout)
	name := tierlock.Name{Namespace: req.Namespace, Resource: "probe", Key: "probe"}
	if err := errors.Join(contract.CheckName(name), checkPlace(tierlock.Place{Epoch: req.Epoch})); err != nil {
		return tierlock.ProbeResult{}, fmt.Errorf("redisstore: probe: %w: %w", tierlock.ErrMisconfigured, err)
	}
	answers, err := s.askAll(ctx, until, req)
	if err != nil {
		s.wires.learnPart(answers)
		return tierlock.ProbeResult{}, fmt.Errorf("redisstore: probe of %s: %w", req.Namespace, classedIn(req.Namespace, err))
	}
	return s.judge(req.Namespace, answers), nil
}

// judge makes one answer of those of all servers.
func (s *Store) judge(namespace string, answers map[place]answer) (res tierlock.ProbeResult) {
	var ids []string
	seen := make(map[place]string, len(answers))
	for at, a := range answers {
		seen[at] = a.nonce
		res.Epoch = max(res.Epoch, a.epoch)
		res.Unsafe = max(res.Unsafe, a.unsafe)
		if s.clocks.slots == nil {
			ids = append(ids, a.id+"-"+a.nonce)
		} else {
			ids = append(ids, a.id)
		}
	}
	slices.Sort(ids)
	res.Incarnation = strings.Join(slices.Compact(ids), ",")
	s.wires.learn(res.Incarnation, answers)
	lately := false
	if res.Lost, lately = s.remember(namespace, seen); lately && s.clocks.slots != nil && res.Unsafe == "" {
		res.Unsafe = "a master has lost its keys and goes on"
	}
	return res
}

// askAll asks all masters. With an error it returns the answers that came.
func (s *Store) askAll(ctx context.Context, until time.Time, req tierlock.ProbeRequest) (map[place]answer, error) {
	if _, err := s.ready(); err != nil {
		return nil, err
	}
	if s.clocks.slots == nil {
		a, err := s.probeSlot(ctx, until, req, 0)
		if err != nil {
			return nil, err
		}
		a.own = true
		return map[place]answer{{id: a.id}: a}, nil
	}
	masters, err := s.masters(ctx, until)
	if err != nil {
		return nil, err
	}
	// A slot that is on its way is answered by the other side. So each master is
	// asked by its first slot, and where that was not its own, by its last.
	all, ids := make(map[place]answer), make(map[string]bool)
	for _, slot := range []func(m served) uint16{
		func(m served) uint16 { return m.first }, func(m served) uint16 { return m.last },
	} {
		answers, errs := make([]answer, len(masters)), make([]error, len(masters))
		var group sync.WaitGroup
		for i, m := range masters {
			group.Go(func() { answers[i], errs[i] = s.probeSlot(ctx, until, req, slot(m)) })
		}
		group.Wait()
		times := make(map[string]int)
		for _, a := range answers {
			times[a.id]++
		}
		for i, a := range answers {
			if errs[i] != nil {
				continue
			}
			a.node, a.own = masters[i].node, times[a.id] == 1 // else it is one for another
			all[place{a.id, slot(masters[i])}], ids[a.id] = a, true
		}
		if err := errors.Join(errs...); err != nil {
			return all, err
		}
		if len(ids) >= len(masters) {
			return all, nil
		}
	}
	return all, fmt.Errorf("%d masters gave %d replication ids: slots are on their way", len(masters), len(ids))
}

// served is a master, with the first and the last slot that it serves.
type served struct {
	node        string
	first, last uint16
}

// masters reads the table of slots, and has to find all slots in it. Where the
// nodes are slow to tell, the table that was read last serves: a master that is
// not there any more does not answer for its slots.
func (s *Store) masters(ctx context.Context, until time.Time) ([]served, error) {
	read := s.hub.lookNow()
	wait := time.Until(until)
	if s.hub.guide.table.Load() != nil {
		wait /= 3
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case <-read:
	case <-limit.C:
	case <-ctx.Done():
		return nil, contract.Ended(ctx)
	case <-s.quit:
		return nil, errClosed
	}
	table := s.hub.guide.table.Load()
	if table == nil {
		return nil, fmt.Errorf("%w: no node has told where slots are", s.noAnswer())
	}
	var masters []served
	index := make(map[string]int)
	next := 0
	for _, r := range *table {
		if int(r.first) != next {
			break
		}
		next = int(r.last) + 1
		if i, known := index[r.node]; known {
			masters[i].last = r.last
			continue
		}
		index[r.node] = len(masters)
		masters = append(masters, served{r.node, r.first, r.last})
	}
	if next != slots {
		return nil, fmt.Errorf("no node serves slot %d", next)
	}
	return masters, nil
}
