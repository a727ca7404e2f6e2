package redisstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
	"github.com/tierlock/tierlock/watchdog"
)

// The marker is a key that each probe writes anew. Its nonce is drawn by whoever
// finds none, so it tells a server that has lost its keys and goes on under the
// same replication id (FLUSHALL) from one that has them. It is part of the incarnation,
// and exclusive scripts compare it: after a loss they grant nothing until the chain
// has moved to the new data, with all holds, as after a failover. The epoch in it is
// the latest mode, for those who cannot reach the arbiter.
//
// On a Cluster a script has the keys of one slot only, and a slot may move with the
// marker in it. There the nonce is no part of the incarnation: each store remembers
// those that it has seen, and holds are FencedOnly for the time after a loss.

// markerLife is how long a marker lives after the last probe. A namespace that
// nobody has used for so long has no holds.
const markerLife = 7 * 24 * time.Hour

// lossLasts is for how long holds on a Cluster are worth less after a loss. By then
// every hold from before it has met whoever took its key, or has ended: it renews
// within its lease.
const lossLasts = contract.MaxTTL

// answer is what one server says to a probe.
type answer struct {
	id, nonce string
	node      string // that was asked, on a Cluster
	own       bool   // it has answered itself
	epoch     uint16
	unsafe    string
	sent      int64 // when, see tripwires
	server    int64 // its clock
}

// probeSlot asks by the marker of one slot.
func (s *Store) probeSlot(ctx context.Context, until time.Time, req tierlock.ProbeRequest, slot uint16) (answer, error) {
	sent := s.wires.local(watchdog.Now())
	var nonce [4]byte // short: the column of the arbiter has to hold all
	for i := range nonce {
		nonce[i] = byte(rand.Uint32())
	}
	keys := []string{string(appendMarkerKey(nil, req.Namespace, slot))}
	if s.clocks.slots == nil {
		// Nothing is done with this one, but where keys of two slots are refused (a node
		// of a Cluster, or a proxy in front of one) exclusive calls would be.
		keys = append(keys, string(appendMarkerKey(nil, req.Namespace, slot+1)))
	}
	msg, err := s.run(ctx, until, &probeChainScript, keys,
		[]string{hex.EncodeToString(nonce[:]), strconv.Itoa(int(req.Epoch)), millis(markerLife)})
	if err != nil {
		return answer{}, err
	}
	parts, err := msg.ToArray()
	if err == nil && len(parts) != 6 {
		err = fmt.Errorf("%d parts", len(parts))
	}
	var texts [6]string
	var epoch, server int64
	for i := range parts {
		switch {
		case err != nil:
		case i == 2:
			epoch, err = parts[i].AsInt64()
		case i == 5:
			server, err = parts[i].AsInt64()
		default:
			texts[i], err = parts[i].ToString()
		}
	}
	if err != nil {
		return answer{}, fmt.Errorf("unexpected answer to a probe: %w", err)
	}
	return answer{id: texts[0], nonce: texts[1], epoch: uint16(epoch), unsafe: evicts(texts[3], texts[4]), sent: sent, server: server}, nil
}

// evicts says why a server with these settings may drop keys that have not expired,
// "" if it does not. Without a limit it drops none, whatever the policy.
func evicts(limit, policy string) string {
	switch {
	case policy == "":
		return fmt.Sprintf("maxmemory-policy cannot be read (INFO memory: %q), and has to be noeviction", limit)
	case policy == "noeviction" || limit == "0":
		return ""
	}
	return fmt.Sprintf("maxmemory-policy is %s, with maxmemory %s, and has to be noeviction", policy, limit)
}

// markers are the nonces that a store has seen in one namespace, and when one was
// seen to have changed.
type markers struct {
	seen map[place]string
	lost time.Time
}

// place is a slot of a server's data.
type place struct {
	id   string
	slot uint16
}

// remember notes what a probe has seen, and reports whether a marker that was there
// has gone meanwhile, and whether one has lately.
func (s *Store) remember(namespace string, seen map[place]string) (lost, lately bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.markers[namespace]
	for at, nonce := range seen {
		if was := old.seen[at]; was != "" && was != nonce {
			lost = true
		}
	}
	next := markers{seen: seen, lost: old.lost}
	if lost {
		next.lost = time.Now()
	}
	if s.markers == nil {
		s.markers = make(map[string]markers)
	}
	s.markers[namespace] = next
	return lost, !next.lost.IsZero() && time.Since(next.lost) < lossLasts
}

// appendMarker appends the key of the marker to those of an exclusive call that
// names its data. On a Cluster there is none, so the client has to be there.
func (s *Store) appendMarker(keys []string, namespace string, p tierlock.Place) ([]string, error) {
	if !judged(p) || p.Incarnation == "" {
		return keys, nil
	}
	if _, err := s.ready(); err != nil {
		return nil, err
	}
	if s.clocks.slots != nil {
		return keys, nil
	}
	return append(keys, string(appendMarkerKey(nil, namespace, 0))), nil
}
