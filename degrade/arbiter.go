package degrade

import "context"

// Arbiter carries out the actions that concern the mode row and the member rows:
// all kinds but [Adopt] and [Probe]. One call is one attempt at one autocommit
// statement on the primary, bounded by ctx and by a bound of the arbiter's own.
//
// An error means that no answer came, or one that leaves open whether the
// statement was or will be executed: the reply is then Lost. What the statement's
// conditions refused is an answer: Reply.OK is false. It is safe for concurrent
// use.
type Arbiter interface {
	Arbitrate(ctx context.Context, self Self, a Action) (Reply, error)
}

// Self is the member for which an action is carried out.
type Self struct {
	// Namespace is that of all its locks; each has its own mode.
	Namespace string
	// Member and Digest are as in [Config]; the arbiter keeps a digest of up to
	// [MaxDigest] bytes of printable ASCII as it is.
	Member, Digest string
	// App, Host and PID are for those who read the rows. App and Host come back in
	// the [Member], as far as they fit into 64 and 255 bytes.
	App, Host string
	PID       int
}
