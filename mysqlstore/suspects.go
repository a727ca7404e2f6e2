package mysqlstore

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/tierlock/tierlock"
)

// suspects are locks of which one may have a row that somebody else's transaction
// holds. A batch waits for all of its rows, so a single such row would keep every
// hold of the batch from being renewed, for as long as that transaction is open.
// After a batch has waited in vain its locks are renewed one by one; those for
// which that succeeds go with the others again. It is for servers on which a
// statement cannot be told not to wait; on others renewPart needs none of it.
type suspects struct {
	mu    sync.Mutex
	until map[tierlock.Name]time.Time
}

// suspicion is how long a lock is suspected after it was last waited for in
// vain: longer than the period of renewal of most leases. Where more than
// mostSuspects are, it is the server that does not answer, and none is.
const (
	suspicion    = 30 * time.Second
	mostSuspects = 4 * maxBatch
)

// now gives a copy of those that are suspected.
func (s *suspects) now() map[tierlock.Name]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.until) == 0 {
		return nil
	}
	now := time.Now()
	maps.DeleteFunc(s.until, func(_ tierlock.Name, until time.Time) bool { return now.After(until) })
	return maps.Clone(s.until)
}

// learn takes in how the renewals of a batch went.
func (s *suspects) learn(reqs []tierlock.RenewRequest, b batch, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case waitedInVain(err):
		if s.until == nil {
			s.until = make(map[tierlock.Name]time.Time)
		}
		until := time.Now().Add(suspicion)
		for _, i := range b.index {
			s.until[reqs[i].Name] = until
		}
		if len(s.until) > mostSuspects {
			clear(s.until)
		}
	case err == nil && len(s.until) > 0:
		for _, i := range b.index {
			delete(s.until, reqs[i].Name)
		}
	}
}

// waitedInVain tells the failures that a row which is not to be had would cause.
func waitedInVain(err error) bool {
	if errors.Is(err, errNoAnswer) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && refused.Number == 1205
}
