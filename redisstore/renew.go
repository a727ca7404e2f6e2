package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// maxBatch is how many requests go into one pipeline: below the length from
// which the client dials a connection for it.
const maxBatch = 1000

// renewal is one request of a batch on its way, a renewal or an adoption: its
// script and where its result goes.
type renewal struct {
	index  int
	name   tierlock.Name
	script *script
	keys   []string
	args   []string
}

// Renew implements [tierlock.Store]. The batch goes out as pipelines of up to
// 1,000 renewals, one after the other (those to different nodes of a Cluster at
// the same time); CallTimeout bounds them all together.
func (s *Store) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	until := time.Now().Add(s.timeout)
	results := make([]tierlock.RenewResult, len(reqs))
	todo := make([]renewal, 0, len(reqs))
	for i, req := range reqs {
		if err := errors.Join(contract.CheckName(req.Name), contract.CheckTTL(req.TTL), contract.CheckLease(req.Lease), checkPlace(req.Place)); err != nil {
			results[i].Err = invalid("renew", req.Name, err)
			continue
		}
		key, lease := lockKey(req.Name, ""), wireLease(req.Lease)
		r := renewal{index: i, name: req.Name, script: &renewScript, keys: []string{key}, args: []string{lease, leaseEnd(lease), millis(req.TTL)}}
		if req.Explicit {
			r.script, r.keys, r.args = &renewEnteredScript, []string{key, key + holdsSuffix}, []string{req.Lease, millis(req.TTL)}
		}
		if judged(req.Place) {
			r.script = renewExclusive[req.Explicit]
			r.args = appendPlace(r.args, req.Place)
			var err error
			if r.keys, err = s.appendMarker(r.keys, req.Name.Namespace, req.Place); err != nil {
				results[i].Err = failed("renew", req.Name, err)
				continue
			}
		}
		todo = append(todo, r)
	}
	s.renewAll(ctx, until, "renew", todo, results)
	return results
}

// renewAll sends what is to be done, op, and waits for all results.
func (s *Store) renewAll(ctx context.Context, until time.Time, op string, todo []renewal, results []tierlock.RenewResult) {
	var parts sync.WaitGroup
	for _, todo := range s.byPart(todo) {
		parts.Go(func() {
			for len(todo) > 0 {
				n := min(len(todo), maxBatch)
				s.renew(ctx, until, op, todo[:n], results)
				todo = todo[n:]
			}
		})
	}
	parts.Wait()
}

// byPart splits a batch into what each node of a Cluster gets: the client would
// send it in one go, too, but answers when the last node has, so that one that
// is silent would cost the others their leases.
func (s *Store) byPart(todo []renewal) map[string][]renewal {
	parts := make(map[string][]renewal, 1)
	for _, r := range todo {
		part := s.Part(r.name)
		parts[part] = append(parts[part], r)
	}
	return parts
}

func (s *Store) renew(ctx context.Context, until time.Time, op string, batch []renewal, results []tierlock.RenewResult) {
	// Where the server does not know the script, nothing was executed: those
	// go once more, with its text.
	for _, build := range []func(*script, rueidis.Builder, []string, []string) rueidis.Completed{
		(*script).bySum, (*script).byText,
	} {
		answers, err := s.pipeline(ctx, until, batch, build)
		var unknown []renewal
		for i, r := range batch {
			result := &results[r.index]
			if err != nil {
				result.Err = failed(op, r.name, err)
				continue
			}
			if unknownScript(answers[i]) {
				unknown = append(unknown, r)
			}
			msg, err := answers[i].ToMessage()
			if err == nil {
				result.State, err = readOwnership(msg)
			}
			result.Err = nil
			if err != nil {
				result.Err = failed(op, r.name, err)
			}
		}
		if batch = unknown; len(batch) == 0 {
			return
		}
	}
}

func (s *Store) pipeline(ctx context.Context, until time.Time, batch []renewal, build func(*script, rueidis.Builder, []string, []string) rueidis.Completed) ([]rueidis.RedisResult, error) {
	client, err := s.ready()
	if err != nil {
		return nil, err
	}
	cmds := make([]rueidis.Completed, len(batch))
	for i, r := range batch {
		cmds[i] = build(r.script, client.B(), r.keys, r.args)
	}
	return s.doMulti(ctx, until, cmds)
}
