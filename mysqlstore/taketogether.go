package mysqlstore

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

// sizes are the numbers of rows that there is a prepared statement for; the rest
// of one is filled up. Each takes memory of the server, on each connection that it
// was used on.
var sizes = [...]int{4, 8, 16, maxGathered}

// maxTogether is how long the token of a call may be that goes with others, in
// bytes: most have some 500, and a server takes packets of a bounded length.
const maxTogether = 2000

// sized gives the text for n rows.
func sized(texts [len(sizes)]string, n int) (text string, size int) {
	for i, size := range sizes {
		if n <= size {
			return texts[i], size
		}
	}
	return "", 0 // never: nobody sends more
}

// What a take has for each row, and as which parameter of takeStatement, in order;
// a question mark is one that is the same for all.
var (
	takeColumns    = strings.Fields("space kind item mark least lease holder enters head tail ttl latest budget")
	takeParameters = strings.Fields("space kind item mark least lease holder enters head least least ttl tail ttl latest budget ? latest budget")
)

// The same of a form that is placed, see takeAt. The columns that it has besides come
// last.
var (
	placedTakeColumns    = append(slices.Clone(takeColumns), strings.Fields("origin mode basis site top bottom")...)
	placedTakeParameters = strings.Fields("space kind item mark origin least mode lease holder enters head origin least mode origin least basis ttl tail ttl " +
		"site latest budget top bottom ? latest budget bottom ?")
)

// takeTogether is takeStatement for several rows: the same text, with columns of a
// list in the place of parameters. It answers with a row for each row that it met;
// the mark tells whose it is. So the answer is small, and is sent when the
// statement has been committed: a caller that does not read it keeps no row locked.
//
// Strings are sent in hexadecimal: the list has columns, as wide as the server takes
// a string to be by the character set of the connection, and one that is not valid in
// that would be cut.
func takeTogether(rows int, session string, f form, columns, parameters []string) string {
	list := make([]string, 0, len(columns))
	for _, c := range columns {
		switch c {
		case "space", "kind", "item", "lease", "holder", "head", "tail", "site":
			list = append(list, "UNHEX(?) AS "+c)
		default:
			list = append(list, "? AS "+c)
		}
	}
	row := "SELECT " + strings.Join(list, ",")
	from := "FROM (" + row + strings.Repeat(" UNION ALL "+row, rows-1) + ") asked "
	var q strings.Builder
	rest := takeStatement("NULL", session, f)
	for _, p := range parameters {
		before, after, _ := strings.Cut(rest, "?")
		q.WriteString(before)
		q.WriteString(p)
		rest = after
	}
	q.WriteString(rest)
	return strings.Replace(q.String(), "FROM DUAL ", from, 1) +
		" RETURNING attempt,fence," + now + ",create_time=UTC_TIMESTAMP(6)"
}

// askFor makes an attempt, together with others where that can be.
func (s *Store) askFor(ctx context.Context, until time.Time, a *attempt) (tierlock.AcquireResult, error) {
	alone := func(ctx context.Context) (tierlock.AcquireResult, error) { return s.attempt(ctx, a) }
	if a.req.Explicit || a.srv.nowait == "" || len(a.head)+len(a.tail) > maxTogether {
		return call(s, s.places, ctx, until, alone)
	}
	return s.takes.call(ctx, until, a.req.Name, a, alone)
}

// taken is what the statement answers of a row.
type taken struct {
	fence  uint64
	server int64
	anew   bool // else the lease was the caller's before
}

// takeAll makes several attempts by one statement. The rows of those that took no
// free lock are read after it, all at once.
func (s *Store) takeAll(ctx context.Context, calls []*gathered[*attempt, tierlock.AcquireResult]) ([]outcome[tierlock.AcquireResult], error) {
	outcomes := make([]outcome[tierlock.AcquireResult], len(calls))
	srv := s.server.Load()
	if srv.nowait == "" { // another server by now
		for i := range outcomes {
			outcomes[i].alone = true
		}
		return outcomes, nil
	}
	// There is one statement for those that have a place, and one for those that have
	// none; in a chain all but the cleaner's have one.
	placed := calls[0].q.req.Place.Epoch > 0
	sent := make([]*attempt, 0, len(calls))
	for i, c := range calls {
		if c.q.req.Place.Epoch > 0 != placed {
			outcomes[i].alone = true
			continue
		}
		sent = append(sent, c.q)
	}
	won, err := s.takeRows(ctx, srv, sent, placed)
	if err != nil {
		return nil, err
	}
	var unclear []int
	for i, c := range calls {
		if outcomes[i].alone {
			continue
		}
		if t := won[c.q.id]; t.anew {
			outcomes[i] = outcomeOf(c.q.grant(t.server, t.fence), nil)
		} else if c.q.req.Place.Exclusive {
			outcomes[i].alone = true // the row is not all that has to be read
		} else {
			unclear = append(unclear, i)
		}
	}
	if unclear == nil {
		return outcomes, nil
	}
	names := make([]*tierlock.Name, len(unclear))
	for n, i := range unclear {
		names[n] = &calls[i].name
	}
	rows, err := s.readAll(ctx, names)
	if err != nil && cut(err) {
		s.era.Add(1)
	}
	for n, i := range unclear {
		if err != nil { // what was granted, was
			outcomes[i] = failedAs[tierlock.AcquireResult](s.told(ctx, err))
			continue
		}
		_, mine := won[calls[i].q.id]
		res, done, err := calls[i].q.judge(&rows[n], mine)
		outcomes[i] = outcomeOf(res, err)
		outcomes[i].alone = !done && err == nil
	}
	return outcomes, nil
}

// takeRows sends the statement. It returns what it found or made of the rows, by
// the marks that they have by now.
func (s *Store) takeRows(ctx context.Context, srv *server, all []*attempt, placed bool) (map[uint64]taken, error) {
	texts, columns := srv.takeTogether, takeColumns
	if placed {
		texts, columns = srv.takeTogetherAt, placedTakeColumns
	}
	text, size := sized(texts, len(all))
	stmt, err := s.prepared(ctx, text)
	if err != nil {
		return nil, err
	}
	era, began := s.era.Load(), time.Now()
	args := make([]any, 0, size*len(columns)+2)
	for _, a := range all {
		a.id = rand.Uint64() &^ 1 // see placed
		req := a.req
		// Of the time that it may be on its way, some has passed in the queue; all
		// of it, perhaps, and then the statement refuses it.
		budget := min(a.budget, a.end.Sub(began).Microseconds())
		args = append(args, hexed(req.Name.Namespace), hexed(req.Name.Resource), hexed(req.Name.Key), a.id, a.floor,
			hexed(req.Token.Lease), hexed(req.Token.Holder[:min(len(req.Token.Holder), maxHolder)]), req.Token.Reentrant,
			hexed(a.head), hexed(a.tail), req.TTL.Microseconds(), a.bound, budget)
		if placed {
			lo, hi := bounds(req.Place)
			args = append(args, leastOf(req.Place.Epoch), req.Place.Epoch, uint64(req.Place.Epoch)<<contract.SeqBits, hexed(data(req.Place)), hi, lo)
		}
	}
	for range size - len(all) { // always late, so nothing is done
		args = append(args, "", "", "", uint64(0), uint64(0), "", "", false, "", "", 0, 0, -1)
		if placed {
			args = append(args, 0, 0, 0, "", 0, 0)
		}
	}
	explained := s.explained()
	if args = append(args, explained); placed {
		args = append(args, explained)
	}
	answers, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return nil, err
	}
	defer answers.Close()
	won := make(map[uint64]taken, len(all))
	for answers.Next() {
		var mark uint64
		var t taken
		if err := answers.Scan(&mark, &t.fence, &t.server, &t.anew); err != nil {
			return nil, err
		}
		if len(won) == 0 {
			s.learn(began, t.server, era)
		}
		if placed {
			mark &^= 1
		}
		won[mark] = t
	}
	return won, answers.Err()
}

func hexed(s string) string { return hex.EncodeToString([]byte(s)) }

// readAll reads the rows of several locks without locking them, in the order of
// the names. One that is not there has only the time.
func (s *Store) readAll(ctx context.Context, names []*tierlock.Name) ([]row, error) {
	rows := make([]row, len(names))
	if len(names) == 1 {
		r, err := s.read(ctx, names[0])
		if err == nil && r.Now == 0 {
			r.Now, err = s.clockNow(ctx)
		}
		rows[0] = r
		return rows, err
	}
	var found []struct {
		Namespace string `db:"namespace"`
		Resource  string `db:"resource_id"`
		Key       string `db:"business_id"`
		row
	}
	q := append(statement{}, "SELECT namespace, resource_id, business_id, "+columns[len("SELECT "):]...)
	for i, n := range names {
		if i > 0 {
			q.add(" OR ")
		}
		q.add("namespace=")
		q.text(n.Namespace)
		q.add(" AND resource_id=")
		q.text(n.Resource)
		q.add(" AND business_id=")
		q.text(n.Key)
	}
	q.add(" LIMIT ") // the session's own may be less
	q.int(maxGathered)
	era, began := s.era.Load(), time.Now()
	if err := s.db.SelectContext(ctx, &found, q.String()); err != nil {
		return nil, err
	}
	at := make(map[tierlock.Name]*row, len(found))
	var server int64
	for i := range found {
		r := &found[i].row
		server, r.At = r.Now, min(r.Now, s.explained())
		at[tierlock.Name{Namespace: found[i].Namespace, Resource: found[i].Resource, Key: found[i].Key}] = r
	}
	if server != 0 {
		s.learn(began, server, era)
	}
	for i, n := range names {
		if r := at[*n]; r != nil {
			rows[i] = *r
			continue
		}
		if server == 0 {
			var err error
			if server, err = s.clockNow(ctx); err != nil {
				return nil, err
			}
		}
		rows[i].Now = server
	}
	return rows, nil
}
