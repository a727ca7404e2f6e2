package redisstore

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
)

// script is one Lua script, run by its digest and sent whole only where the
// server does not know it: after a restart, SCRIPT FLUSH, a failover.
type script struct{ text, digest string }

func newScript(parts ...string) script {
	var b strings.Builder
	for _, p := range parts {
		// Comments are for readers of the files, not for the server.
		for line := range strings.Lines(p) {
			if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "--") {
				b.WriteString(trimmed + "\n")
			}
		}
	}
	sum := sha1.Sum([]byte(b.String()))
	return script{text: b.String(), digest: hex.EncodeToString(sum[:])}
}

var (
	//go:embed lua/grant.lua
	grantLua string
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/enter.lua
	enterLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/renew_entered.lua
	renewEnteredLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/release_entered.lua
	releaseEnteredLua string
	//go:embed lua/update.lua
	updateLua string
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/probe.lua
	probeLua string

	//go:embed lua/chain.lua
	chainLua string
	//go:embed lua/judge.lua
	judgeLua string
	//go:embed lua/exclusive.lua
	exclusiveLua string
	//go:embed lua/exclusive_key.lua
	exclusiveKeyLua string
	//go:embed lua/exclusive_grant.lua
	exclusiveGrantLua string
	//go:embed lua/grant_chain.lua
	grantChainLua string
	//go:embed lua/adopt.lua
	adoptLua string
	//go:embed lua/probe_chain.lua
	probeChainLua string

	acquireScript        = newScript(grantLua, acquireLua)
	enterScript          = newScript(grantLua, enterLua)
	renewScript          = newScript(renewLua)
	renewEnteredScript   = newScript(renewEnteredLua)
	releaseScript        = newScript(releaseLua)
	releaseEnteredScript = newScript(releaseEnteredLua)
	updateScript         = newScript(updateLua)
	inspectScript        = newScript(inspectLua)
	probeScript          = newScript(probeLua)

	// Those of a chain, see placed.go.
	acquireChainScript            = newScript(chainLua, grantLua, grantChainLua, acquireLua)
	enterChainScript              = newScript(chainLua, grantLua, grantChainLua, enterLua)
	acquireExclusiveScript        = newScript(chainLua, judgeLua, exclusiveLua, grantLua, grantChainLua, exclusiveGrantLua, acquireLua)
	enterExclusiveScript          = newScript(chainLua, judgeLua, exclusiveLua, grantLua, grantChainLua, exclusiveGrantLua, enterLua)
	renewExclusiveScript          = newScript(chainLua, judgeLua, exclusiveLua, exclusiveKeyLua, renewLua)
	renewEnteredExclusiveScript   = newScript(chainLua, judgeLua, exclusiveLua, exclusiveKeyLua, renewEnteredLua)
	releaseExclusiveScript        = newScript(chainLua, judgeLua, exclusiveLua, exclusiveKeyLua, releaseLua)
	releaseEnteredExclusiveScript = newScript(chainLua, judgeLua, exclusiveLua, exclusiveKeyLua, releaseEnteredLua)
	adoptScript                   = newScript(chainLua, judgeLua, adoptLua)
	adoptExclusiveScript          = newScript(chainLua, judgeLua, exclusiveLua, adoptLua)
	probeChainScript              = newScript(probeChainLua)
)

func (sc *script) bySum(b rueidis.Builder, keys, args []string) rueidis.Completed {
	return b.Evalsha().Sha1(sc.digest).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func (sc *script) byText(b rueidis.Builder, keys, args []string) rueidis.Completed {
	return b.Eval().Script(sc.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func unknownScript(r rueidis.RedisResult) bool {
	re, ok := rueidis.IsRedisErr(r.Error())
	return ok && re.IsNoScript()
}

// run executes one script on the node of keys[0]; until bounds it, second try
// included.
func (s *Store) run(ctx context.Context, until time.Time, sc *script, keys, args []string) (rueidis.RedisMessage, error) {
	client, err := s.ready()
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	res, err := s.do(ctx, until, sc.bySum(client.B(), keys, args))
	if err == nil && unknownScript(res) {
		// Nothing was executed, so this is still the one attempt.
		res, err = s.do(ctx, until, sc.byText(client.B(), keys, args))
	}
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	return res.ToMessage()
}

// probe asks a node what has to be known before it is used, and its clock. It
// reports whether the server has sharded channels.
func (s *Store) probe(ctx context.Context, until time.Time, key string) (server int64, sharded bool, err error) {
	msg, err := s.run(ctx, until, &probeScript, []string{key}, nil)
	if err != nil {
		return 0, false, err
	}
	return readProbe(msg)
}

func readProbe(msg rueidis.RedisMessage) (server int64, sharded bool, err error) {
	answer, err := msg.AsIntSlice()
	if err == nil && len(answer) != 3 {
		err = errors.New("wanted three numbers")
	}
	if err != nil {
		return 0, false, fmt.Errorf("unexpected answer to a probe: %w", err)
	}
	if answer[2] != 1 {
		return 0, false, fmt.Errorf("%w: a 64-bit build of Redis is needed", tierlock.ErrMisconfigured)
	}
	return answer[0], answer[1] == 1, nil
}
