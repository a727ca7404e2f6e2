package redisstore

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// commands is what a restricted user has to be allowed, beside the keys and
// channels of its namespaces. The package comment says what each is for.
const commands = "+eval +evalsha +time +get +set +getrange +del +pttl +pexpire" +
	" +zadd +zrem +zscore +zcard +zcount +zrange +zremrangebyscore" +
	" +publish +spublish +subscribe +ssubscribe +unsubscribe +sunsubscribe +ping"

var (
	denied = regexp.MustCompile(`NOPERM|(?i)the user executing the script can't|acl failure in script`)
	// What servers of different versions say about it.
	deniedCommand = regexp.MustCompile(`run the '([^']+)' command`)
	deniedKey     = regexp.MustCompile(`(?i)access (?:a key|the '.*' key|(?:at least )?one of the keys)`)
	deniedChannel = regexp.MustCompile(`(?i)access (?:a channel|the '.*' channel|(?:at least )?one of the channels)`)
	// Before 7.2 a server does not name the command that it refused a script,
	// but the line where it was called.
	deniedLine = regexp.MustCompile(`(?:call to f_([0-9a-f]{40})\): ?|script: ([0-9a-f]{40}), on )@user_script: ?(\d+)`)
	calledIn   = regexp.MustCompile(`(?:call|try)\('([A-Z]+)'`)
)

// permissionHint says which permission a server's refusal asks for, and which
// are needed in all. It is empty where the refusal is about something else.
func permissionHint(namespace, refusal string) string {
	if !denied.MatchString(refusal) {
		return ""
	}
	keys, channels := "~lock:"+namespace+":*", "&lock:"+namespace+":*"
	missing := "?"
	switch {
	case deniedKey.MatchString(refusal):
		missing = keys
	case deniedChannel.MatchString(refusal):
		missing = channels
	default:
		if m := deniedCommand.FindStringSubmatch(refusal); m != nil {
			missing = "+" + strings.ToLower(m[1])
		} else if c := calledAt(refusal); len(c) > 0 {
			missing = strings.Join(c, " or ")
		}
	}
	needed := commands
	if missing == "+info" {
		needed += " +info" // a chain's calls only
	}
	return fmt.Sprintf("missing permission: %s; all that are needed: %s %s %s", missing, keys, channels, needed)
}

// calledAt is what is called in the line of a script that an error names, as
// permissions.
func calledAt(refusal string) (permissions []string) {
	m := deniedLine.FindStringSubmatch(refusal)
	if m == nil {
		return nil
	}
	n, err := strconv.Atoi(m[3])
	if err != nil {
		return nil
	}
	for _, sc := range scripts {
		if sc.digest != m[1]+m[2] {
			continue
		}
		lines := strings.Split(sc.text, "\n")
		if n < 1 || n > len(lines) {
			return nil
		}
		for _, c := range calledIn.FindAllStringSubmatch(lines[n-1], -1) {
			permissions = append(permissions, "+"+strings.ToLower(c[1]))
		}
	}
	return permissions
}

var scripts = []*script{
	&acquireScript, &enterScript, &renewScript, &renewEnteredScript,
	&releaseScript, &releaseEnteredScript, &updateScript, &inspectScript, &probeScript,
	&acquireChainScript, &enterChainScript, &acquireExclusiveScript, &enterExclusiveScript,
	&renewExclusiveScript, &renewEnteredExclusiveScript, &releaseExclusiveScript, &releaseEnteredExclusiveScript,
	&adoptScript, &adoptExclusiveScript, &probeChainScript,
}
