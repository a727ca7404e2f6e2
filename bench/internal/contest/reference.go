package contest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// The references show what a lock costs at the least: they neither renew nor
// notice a loss, and wait by polling.

var bareContestant = Contestant{
	Name:  "bare",
	About: "SET key value NX PX, and a compare-and-delete script, over the same client options",
	Open: func(s Settings) (Locker, error) {
		return openReference(s, func(r *reference) {
			r.acquire = func(ctx context.Context, key, value string) (bool, error) {
				cmd := r.client.B().Set().Key(key).Value(value).Nx().PxMilliseconds(s.TTL.Milliseconds()).Build()
				err := r.client.Do(ctx, cmd).Error()
				if rueidis.IsRedisNil(err) {
					return false, nil
				}
				return err == nil, err
			}
			r.release, r.renew = bareRelease, bareRenew
		})
	},
}

var floorContestant = Contestant{
	Name: "floor",
	About: "two minimal scripts of tierlock's work over the same client options: a fence out of TIME, a JSON value as long as tierlock's, " +
		"SET NX, a release that compares the owner at a fixed offset, integers as replies; no late guard, no wake-up of waiters",
	Open: func(s Settings) (Locker, error) {
		return openReference(s, func(r *reference) {
			ttl := strconv.FormatInt(s.TTL.Milliseconds(), 10)
			r.acquire = func(ctx context.Context, key, value string) (bool, error) {
				fence, err := floorAcquire.Exec(ctx, r.client, []string{key}, []string{value, ttl, floorTail(key)}).AsInt64()
				return fence > 0, err
			}
			r.release, r.renew = floorRelease, floorRenew
		})
	},
}

var fullContestant = Contestant{
	Name: "full",
	About: "floor, and what tierlock has the server do besides: a bound on lateness, the record of the slot's largest fence, " +
		"a message to waiters with each release; what is left of tierlock's distance to it is the client's",
	Open: func(s Settings) (Locker, error) {
		return openReference(s, func(r *reference) {
			ttl := strconv.FormatInt(s.TTL.Milliseconds(), 10)
			r.acquire = func(ctx context.Context, key, value string) (bool, error) {
				late := strconv.FormatInt(time.Now().Add(time.Minute).UnixMicro(), 10)
				fence, err := fullAcquire.Exec(ctx, r.client, []string{key, fullRecord(key)}, []string{value, ttl, floorTail(key), late}).AsInt64()
				return fence > 0, err
			}
			r.release, r.renew = fullRelease, floorRenew
		})
	},
}

// fullRecord is the key of one of as many records as a Cluster has slots.
func fullRecord(key string) string {
	h := fnv.New32a()
	h.Write([]byte(key))
	return "record:" + strconv.Itoa(int(h.Sum32()%16384))
}

var (
	bareRelease = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)
	bareRenew = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0`)

	floorAcquire = rueidis.NewLuaScript(`local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local seq = math.floor((now - 1735689600000000) / 2)
if redis.call('SET', KEYS[1], string.format('{"lease":"%s","fence":"%d","serverTime":%d%s', ARGV[1], seq, now, ARGV[3]), 'NX', 'PX', ARGV[2]) then return seq end
return 0`)
	floorRelease = rueidis.NewLuaScript(`local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 11, 10 + #ARGV[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)
	fullAcquire = rueidis.NewLuaScript(`local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
if now > tonumber(ARGV[4]) then return -now end
local seq = math.floor((now - 1735689600000000) / 2)
if redis.call('SET', KEYS[1], string.format('{"lease":"%s","fence":"%d","serverTime":%d%s', ARGV[1], seq, now, ARGV[3]), 'NX', 'PX', ARGV[2]) then
  local last = redis.call('SET', KEYS[2], string.format('%d', seq), 'PX', '62000', 'GET')
  if last and tonumber(last) > seq then return redis.error_reply('the clock was stepped back') end
  return seq
end
return 0`)
	fullRelease = rueidis.NewLuaScript(`if redis.call('GETRANGE', KEYS[1], '10', 9 + #ARGV[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SPUBLISH', KEYS[1] .. ':wake', '')
return 1`)
	floorRenew = rueidis.NewLuaScript(`local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 11, 10 + #ARGV[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0`)
)

// floorTail is what the client gives to the value: with it the value is about
// as long as a token of tierlock's, as a test checks.
func floorTail(key string) string { return `,"key":"` + key + floorFill }

// floorFill allows for the host's name, which stands twice in a token.
var floorFill = func() string {
	host, _ := os.Hostname()
	return `","fill":"` + strings.Repeat("x", 280+2*len(host)) + `"}`
}()

const referencePoll = 5 * time.Millisecond

// polled tries until the lock is not held by others.
func polled(ctx context.Context, poll time.Duration, try func() (Held, error)) (Held, error) {
	for {
		h, err := try()
		if err != ErrHeld {
			return h, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(poll):
		}
	}
}

// tokens are names of owners, no two of which are the same.
type tokens struct {
	prefix string
	last   atomic.Uint64
}

func newTokens() *tokens {
	var id [16]byte
	rand.Read(id[:])
	return &tokens{prefix: hex.EncodeToString(id[:]) + "-"}
}

func (t *tokens) next() string { return t.prefix + strconv.FormatUint(t.last.Add(1), 36) }

type reference struct {
	client         rueidis.Client
	ttl            string
	poll           time.Duration
	tokens         *tokens
	acquire        func(ctx context.Context, key, value string) (bool, error)
	release, renew *rueidis.Lua
}

func openReference(s Settings, fill func(*reference)) (Locker, error) {
	client, err := rueidis.NewClient(recommended(s))
	if err != nil {
		return nil, err
	}
	r := &reference{client: client, ttl: strconv.FormatInt(s.TTL.Milliseconds(), 10), poll: s.Poll, tokens: newTokens()}
	if r.poll == 0 {
		r.poll = referencePoll
	}
	fill(r)
	return r, nil
}

func (r *reference) TryLock(ctx context.Context, key string) (Held, error) {
	value := r.tokens.next()
	ok, err := r.acquire(ctx, key, value)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, ErrHeld
	}
	return &referenceHeld{r, key, value}, nil
}

func (r *reference) Lock(ctx context.Context, key string) (Held, error) {
	return polled(ctx, r.poll, func() (Held, error) { return r.TryLock(ctx, key) })
}

func (r *reference) Close() { r.client.Close() }

type referenceHeld struct {
	r          *reference
	key, value string
}

func (h *referenceHeld) Unlock() error {
	return changed(h.r.release.Exec(context.Background(), h.r.client, []string{h.key}, []string{h.value}))
}

func (h *referenceHeld) Renew(ctx context.Context) error {
	return changed(h.r.renew.Exec(ctx, h.r.client, []string{h.key}, []string{h.value, h.r.ttl}))
}

var errLost = errors.New("lost")

func changed(res rueidis.RedisResult) error {
	n, err := res.AsInt64()
	if err != nil {
		return fmt.Errorf("reference: %w", err)
	}
	if n != 1 {
		return errLost
	}
	return nil
}
