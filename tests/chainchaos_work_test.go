package tests_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
)

// chainWork is one handle on its way through a worker.
type chainWork struct {
	chainHandle
	c     *chainSide
	r     *rand.Rand
	res   tierlock.Resource
	work  time.Duration
	token tierlock.Token
	how   string // of its register
	value int64  // read, unless how is ""
	noted int64
}

func (h *chainWork) note() {
	l := h.chainHandle
	h.noted = machineTime()
	h.c.note(chainLine{Handle: &l})
}

func (h *chainWork) locked(k *tierlock.Lock, err error) {
	if err != nil {
		h.refused(err)
		return
	}
	h.given(k.Token())
	h.begin(k.Context())
	lingers := h.r.IntN(3) == 0 // goes on although the lock is lost
	nests := h.res.Reentrant && !h.Inner && h.r.IntN(3) == 0
	for end := time.Now().Add(h.work); (h.look(k.Err, k.Context()) || lingers) && time.Now().Before(end) && !h.c.stopping(); {
		if nests {
			nests = false
			h.reenter(k)
			continue
		}
		time.Sleep(min(time.Until(end), span(h.r, time.Millisecond, 10*time.Millisecond)))
	}
	h.finish(k.Context(), func() bool { return k.Err() == nil })
	h.look(k.Err, k.Context())
	h.Unlock = machineTime()
	h.unlocked(k.Unlock())
	if k.Err() == nil || k.Context().Err() == nil {
		h.c.complain("%s/%s %s is believed in after Unlock", h.Resource, h.Key, h.ID)
	}
}

// reenter enters the hold once more, and leaves it.
func (h *chainWork) reenter(k *tierlock.Lock) {
	in := h.c.handle(h.r, h.res, h.Key)
	in.Inner, in.Holder, in.work, in.Called = true, h.Holder, workTime(h.r)/4, machineTime()
	inner, err := h.c.locker.Lock(k.Context(), h.Resource, h.Key)
	if err == nil && h.ID != inner.Token().ID && k.Err() == nil {
		h.c.complain("%s/%s: nested in %s, given %s", h.Resource, h.Key, h.ID, inner.Token().ID)
	}
	in.locked(inner, err)
}

func (h *chainWork) do(ctx context.Context, opts ...tierlock.Option) {
	ran := false
	err := h.c.locker.Do(ctx, h.Resource, h.Key, func(ctx context.Context) error {
		ran = true
		h.given(tierlock.TokenFrom(ctx))
		h.begin(ctx)
		for end := time.Now().Add(h.work); h.look(nil, ctx) && time.Now().Before(end) && !h.c.stopping(); {
			time.Sleep(min(time.Until(end), span(h.r, time.Millisecond, 10*time.Millisecond)))
		}
		h.how = "" // a context alone may be late: no register is written by it
		h.look(nil, ctx)
		return nil
	}, opts...)
	switch {
	case !ran:
		h.refused(err)
	case err != nil && !errors.Is(err, tierlock.ErrLost):
		h.c.complain("%s/%s: Do gave %v for work that was done", h.Resource, h.Key, err)
	default:
		h.unlocked(err)
	}
}

func (h *chainWork) given(t tierlock.Token) {
	h.Returned = machineTime()
	h.token, h.ID, h.Fence, h.Epoch, h.Tier = t, t.ID, t.Fence, int(t.Epoch), t.Tier.String()
	h.note()
}

// begin reads the register of the key, which must be done under the lock. Campers have
// none, and no explicit holder has one for itself.
func (h *chainWork) begin(ctx context.Context) {
	if h.Inner || h.Holder != "" || h.Key[0] == 'c' {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	how := registerOf(h.Resource, h.Key)
	v, err := h.c.tools.read(ctx, how, h.register(how), h.token)
	if err != nil {
		h.c.count(func(n *chainCounts) { n.Writes[how+": not read"]++ })
		return
	}
	h.how, h.value = how, v
}

func (h *chainWork) register(how string) string { return h.Resource + "-" + h.Key + "-" + how }

// finish writes the register.
func (h *chainWork) finish(ctx context.Context, held func() bool) {
	if h.how == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	v, looked, err := h.c.tools.write(ctx, h.how, h.register(h.how), h.token, h.value, held)
	result := "written"
	switch {
	case err == nil:
		h.c.note(chainLine{Write: &registerWrite{Proc: h.Proc, Resource: h.Resource, Key: h.Key, How: h.how, ID: h.ID,
			Fence: h.Fence, Value: v, Looked: looked, Confirmed: machineTime()}})
	case errors.Is(err, errRefused) || errors.Is(err, mysqlstore.ErrFenced):
		result = "refused"
	default:
		result = "failed"
	}
	h.c.count(func(n *chainCounts) { n.Writes[h.how+": "+result]++ })
}

// look is that of TestChaos; what it finds is in the file every 20 ms.
func (h *chainWork) look(err func() error, ctx context.Context) bool {
	held := false
	if err != nil {
		if at := machineTime(); err() == nil {
			h.Believed, held = at, true
		}
	}
	if at := machineTime(); ctx.Err() == nil {
		h.Alive, held = at, true
	}
	if held && machineTime()-h.noted > int64(20*time.Millisecond) {
		h.note()
	}
	return held
}

func (h *chainWork) refused(err error) {
	defer time.Sleep(span(h.r, time.Millisecond, 30*time.Millisecond))
	if h.ended(err, "refused: ") == "" {
		h.c.complain("%s/%s: Lock gave %v", h.Resource, h.Key, err)
	}
}

func (h *chainWork) unlocked(err error) {
	h.Ended = machineTime()
	if err != nil {
		h.Err = err.Error()
	}
	h.note()
	name := h.ended(err, "unlocked: ")
	if name != "ok" && name != "lost" && name != "unavailable" {
		h.c.complain("%s/%s: Unlock gave %v", h.Resource, h.Key, err)
	}
	h.c.count(func(n *chainCounts) { n.Held++ })
}

// ended counts a result and returns its name, "" if callers could not know it.
func (h *chainWork) ended(err error, what string) (name string) {
	if err == nil {
		name = "ok"
	}
	for _, s := range documented {
		if name == "" && errors.Is(err, s.err) {
			name = s.name
		}
	}
	h.c.count(func(n *chainCounts) { n.Ends[h.Resource+" "+what+name]++ })
	return name
}
