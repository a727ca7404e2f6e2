package redisstore

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/internal/contract"
)

var (
	errClosed = errors.New("the store is closed")
	errStuck  = fmt.Errorf("%d calls are still without an answer", maxStuck)
)

// classed joins err with the class that callers branch on. What already has a
// class keeps it.
func classed(err error) error { return classedIn("<namespace>", err) }

// classedIn is classed for an error about a lock of a namespace.
func classedIn(namespace string, err error) error {
	for _, class := range []error{tierlock.ErrUnavailable, tierlock.ErrLate, tierlock.ErrMisconfigured, tierlock.ErrEpoch} {
		if errors.Is(err, class) {
			return err
		}
	}
	if text, ok := answered(err); ok && strings.HasPrefix(text, "EPOCH ") { // our own, see judge.lua
		return fmt.Errorf("%w: %w", tierlock.ErrEpoch, err)
	}
	if !misconfigured(err) {
		return fmt.Errorf("%w: %w", tierlock.ErrUnavailable, err)
	}
	if hint := permissionHint(namespace, err.Error()); hint != "" {
		return fmt.Errorf("%w: %w (%s)", tierlock.ErrMisconfigured, err, hint)
	}
	return fmt.Errorf("%w: %w", tierlock.ErrMisconfigured, err)
}

// failed is the error of one operation on one lock.
func failed(op string, n tierlock.Name, err error) error {
	return fmt.Errorf("redisstore: %s %s: %w", op, n, classedIn(n.Namespace, err))
}

// invalid is the error of a request that no server was asked about.
func invalid(op string, n tierlock.Name, err error) error {
	return fmt.Errorf("redisstore: %s %s: %w: %w", op, n, tierlock.ErrMisconfigured, err)
}

// scripted finds what went wrong inside a script. Redis 6.2 wraps it:
// "ERR Error running script (call to f_…): @user_script:12: @user_script: 12:
// -OOM command …", with the line once for what the command itself says, and
// twice for what is refused before it runs; 7.0 keeps the code in front and
// appends "script: …". The client takes away a leading "ERR ".
var scripted = regexp.MustCompile(`^(?:ERR )?Error running script .*?(?:@user_script: ?\d+: )+(.*)$`)

// misconfigured tells the answers that no retry can change before somebody
// changes a setting. Everything else, known or not, is an unavailable server:
// READONLY, LOADING, CLUSTERDOWN, MASTERDOWN, TRYAGAIN, OOM, MISCONF,
// NOREPLICAS, BUSY, too many clients, a broken connection.
func misconfigured(err error) bool {
	var foreign *contract.Unclassed
	if errors.As(err, &foreign) {
		return false
	}
	if errors.Is(err, rueidis.ErrNoCache) {
		return true
	}
	if untrusted(err) {
		return true
	}
	text, ok := answered(err)
	if !ok {
		return false
	}
	code, _, _ := strings.Cut(text, " ")
	switch code {
	case "NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "DENIED", "CROSSSLOT", "NOPROTO",
		"CLOCK", "CHAIN", // our own, see grant.lua
		"MOVED": // a Cluster client follows it, so another kind of client is needed
		return true
	}
	text = strings.ToLower(strings.TrimPrefix(text, "ERR "))
	for _, start := range []string{
		"unknown command", "unknown redis command", "unknown subcommand",
		"this redis command is not allowed from",
		"the user executing the script can't", "acl failure in script",
		"client names cannot contain",
		"db index is out of range", "invalid db index", "select is not allowed in cluster mode",
		"auth ", "client sent auth", "invalid password",
		"syntax error", "wrong number of arguments", "error compiling script",
	} {
		if strings.HasPrefix(text, start) {
			return true
		}
	}
	return false
}

// answered is the text of a server's error, without what it says about the
// script that met it.
func answered(err error) (text string, ok bool) {
	var re *rueidis.RedisError
	if !errors.As(err, &re) {
		return "", false
	}
	text = strings.TrimPrefix(re.Error(), "-")
	if m := scripted.FindStringSubmatch(text); m != nil {
		text = strings.TrimPrefix(m[1], "-")
	}
	return text, true
}

// readOnly tells the answer of a replica to what would have written.
func readOnly(err error) bool {
	if err == nil {
		return false // the usual case, and worth no more
	}
	text, ok := answered(err)
	return ok && strings.HasPrefix(text, "READONLY ")
}
