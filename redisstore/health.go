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
	"github.com/tierlock/tierlock/watchdog"
)

// probeLife is how long the key that Probe writes lives. It says nothing; it only
// has to be written.
const probeLife = time.Second

// Probe implements [tierlock.Chained]. It writes a key of the namespace and reads
// the replication id of the primary that has taken it; with a Cluster client on
// each master, of which all have to answer. The incarnation is that id, or all of
// them, sorted and joined by commas. It is one round trip; on a Cluster two, the
// first for the table of slots.
//
// The id changes where a replica is promoted, where a server restarts, and where
// the first replica attaches to a server, or it has had none for repl-backlog-ttl.
func (s *Store) Probe(ctx context.Context, namespace string) (incarnation string, err error) {
	until := time.Now().Add(s.timeout)
	name := tierlock.Name{Namespace: namespace, Resource: "probe", Key: "probe"}
	if err := contract.CheckName(name); err != nil {
		return "", fmt.Errorf("redisstore: probe: %w: %w", tierlock.ErrMisconfigured, err)
	}
	seen, err := s.probeMasters(ctx, until, namespace)
	if err != nil {
		return "", fmt.Errorf("redisstore: probe of %s: %w", namespace, classedIn(namespace, err))
	}
	incarnation = strings.Join(idsOf(seen), ",")
	s.learnProbed(incarnation, seen)
	return incarnation, nil
}

// probed is what one master has answered.
type probed struct {
	id     string // its replication id
	slot   uint16 // by which it was asked
	sent   int64  // when, see tripwires
	server int64  // its clock
}

// idsOf are the ids of all, sorted, each once.
func idsOf(seen []probed) []string {
	ids := make([]string, len(seen))
	for i, p := range seen {
		ids[i] = p.id
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// probeMasters probes each master.
func (s *Store) probeMasters(ctx context.Context, until time.Time, namespace string) ([]probed, error) {
	if _, err := s.ready(); err != nil {
		return nil, err
	}
	if s.clocks.slots == nil {
		p, err := s.probeSlot(ctx, until, namespace, 0)
		return []probed{p}, err
	}
	masters, err := s.masters(ctx, until)
	if err != nil {
		return nil, err
	}
	// A slot that is on its way is answered by the other side. So each master is
	// asked by its first slot, and where that was not its own, by its last.
	var seen []probed
	for _, slot := range []func(m served) uint16{
		func(m served) uint16 { return m.first }, func(m served) uint16 { return m.last },
	} {
		answers, errs := make([]probed, len(masters)), make([]error, len(masters))
		var all sync.WaitGroup
		for i, m := range masters {
			all.Go(func() { answers[i], errs[i] = s.probeSlot(ctx, until, namespace, slot(m)) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		if seen = append(seen, answers...); len(idsOf(seen)) >= len(masters) {
			return seen, nil
		}
	}
	return nil, fmt.Errorf("%d masters gave %d replication ids: slots are on their way", len(masters), len(idsOf(seen)))
}

// probeSlot writes in one slot.
func (s *Store) probeSlot(ctx context.Context, until time.Time, namespace string, slot uint16) (probed, error) {
	p := probed{slot: slot, sent: s.wires.local(watchdog.Now())}
	key := string(appendProbeKey(nil, namespace, slot))
	msg, err := s.run(ctx, until, &probeChainScript, []string{key}, []string{millis(probeLife)})
	if err != nil {
		return p, err
	}
	answer, err := msg.ToArray()
	if err == nil && len(answer) != 2 {
		err = errors.New("wanted two values")
	}
	if err == nil {
		p.id, err = answer[0].ToString()
	}
	if err == nil {
		p.server, err = answer[1].AsInt64()
	}
	if err == nil && p.id == "" {
		err = errors.New("it has no replication id")
	}
	if err != nil {
		return p, fmt.Errorf("unexpected answer to a probe: %w", err)
	}
	return p, nil
}

// served is the first and the last slot that a master serves.
type served struct{ first, last uint16 }

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
		masters = append(masters, served{r.first, r.last})
	}
	if next != slots {
		return nil, fmt.Errorf("no node serves slot %d", next)
	}
	return masters, nil
}
