package sim

import "time"

// journal is how to undo the latest changes of a server: what a failover that
// loses data takes back.
type journal struct{ changes []change }

type change struct {
	at   time.Time
	undo func(h *host)
}

// journalTime is how far back a failover can lose data.
const journalTime = time.Minute

// note takes in how to undo a change that was just made: in this host, or in a copy
// of it.
func (j *journal) note(undo func(h *host)) {
	now := time.Now()
	if n := len(j.changes); n > 1024 && now.Sub(j.changes[n/2].at) > journalTime {
		j.changes = append(j.changes[:0:0], j.changes[n/2:]...)
	}
	j.changes = append(j.changes, change{now, undo})
}
