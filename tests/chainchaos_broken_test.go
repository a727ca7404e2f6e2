package tests_test

import (
	"context"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
	"github.com/tierlock/tierlock/redisstore"
)

// breakers are stores that break a rule of the chain, each by its name.
var breakers = map[string]func(*redisstore.Store, *mysqlstore.Store) []tierlock.Store{
	"other data": func(r *redisstore.Store, m *mysqlstore.Store) []tierlock.Store {
		return []tierlock.Store{&anyData{r}, m}
	},
	"adoption": func(r *redisstore.Store, m *mysqlstore.Store) []tierlock.Store {
		return []tierlock.Store{r, &adoptsNothing{m}}
	},
}

// anyData is a Redis store that does not tell the server which data, and which epoch,
// a call is meant for.
type anyData struct{ *redisstore.Store }

func (s *anyData) Acquire(ctx context.Context, req tierlock.AcquireRequest) (tierlock.AcquireResult, error) {
	req.Place = tierlock.Place{Epoch: req.Place.Epoch}
	return s.Store.Acquire(ctx, req)
}

func (s *anyData) Renew(ctx context.Context, reqs []tierlock.RenewRequest) []tierlock.RenewResult {
	for i := range reqs {
		reqs[i].Place = tierlock.Place{Epoch: reqs[i].Place.Epoch}
	}
	return s.Store.Renew(ctx, reqs)
}

// adoptsNothing is a MySQL store that says that holds were taken over, and does
// nothing for it.
type adoptsNothing struct{ *mysqlstore.Store }

func (s *adoptsNothing) Adopt(_ context.Context, reqs []tierlock.AdoptRequest) []tierlock.RenewResult {
	results := make([]tierlock.RenewResult, len(reqs))
	for i := range results {
		results[i].State = tierlock.LeaseOwned
	}
	return results
}
