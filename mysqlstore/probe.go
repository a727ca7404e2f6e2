package mysqlstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tierlock/tierlock"
)

// probing is the resource of the rows that Probe writes: none of a user's has a
// slash.
const probing = "tierlock/probe"

// Probe implements [tierlock.Chained]. The incarnation is the identity of the
// server: it changes with a failover to another, and not with a restart. Nothing else
// is told: the epoch is in lock_mode, and the server deletes no row by itself.
//
// A probe writes a row of its own, so that it also notices a server that accepts
// statements and cannot commit, and deletes it again. A row whose deletion was lost
// is one of a lock that is free, and goes with those. A server that is set to
// read_only is unavailable also for a user whom that does not stop: it is no
// primary. A probe takes one of the places of renewals, so that calls that hang, or
// many calls, do not look like an outage.
func (s *Store) Probe(ctx context.Context, req tierlock.ProbeRequest) (tierlock.ProbeResult, error) {
	until := time.Now().Add(s.timeout)
	var res tierlock.ProbeResult
	srv, err := s.ready(ctx, until)
	if err == nil {
		res.Incarnation, err = call(s, s.renewals, ctx, until, func(ctx context.Context) (string, error) {
			return s.probe(ctx, srv, req.Namespace)
		})
	}
	if err != nil {
		return tierlock.ProbeResult{}, fmt.Errorf("mysqlstore: probe of namespace %q: %w", req.Namespace, classed(err))
	}
	return res, nil
}

func (s *Store) probe(ctx context.Context, srv *server, namespace string) (string, error) {
	var is struct {
		Server   string `db:"server"`
		Writable bool   `db:"writable"`
	}
	stmt, err := s.prepared(ctx, "SELECT "+identity+" AS server, "+writable+" AS writable")
	if err != nil {
		return "", err
	}
	if err := stmt.GetContext(ctx, &is); err != nil {
		return "", err
	}
	if !is.Writable {
		return "", fmt.Errorf("%w: server %q is read_only", tierlock.ErrUnavailable, is.Server)
	}
	var id [16]byte
	for i := range id {
		id[i] = byte(rand.Uint32())
	}
	key := hex.EncodeToString(id[:])
	// Of the executing server only: that is the one which was asked. The fence is
	// the least, so that it is none of a time.
	wrote, err := s.write(ctx, srv, "INSERT INTO lock_record (namespace,resource_id,business_id,lease_id,holder_id,fence,epoch,attempt,reentrant,entries,token,expire_at,create_time) "+
		"SELECT ?,'"+probing+"',?,'','',1,0,0,0,NULL,'',"+released+","+released+" FROM DUAL WHERE IF("+srv.sound+" AND "+on+",LAST_INSERT_ID(1),0)>0",
		namespace, key, is.Server)
	if err != nil {
		return "", err
	}
	if wrote == 0 {
		return "", errNoEffect
	}
	_, err = s.write(ctx, srv, "DELETE FROM lock_record WHERE "+named, namespace, probing, key)
	return is.Server, err
}
