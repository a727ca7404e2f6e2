package redisstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// untrusted tells a TLS connection that one side refused for what it is, and
// would refuse again: a certificate that the other does not accept (wrong
// authority, wrong name, expired, none), no common version or cipher, or a
// server that does not speak TLS.
func untrusted(err error) bool {
	var certificate *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	if errors.As(err, &certificate) || errors.As(err, &noTLS) {
		return true
	}
	return refusals[alertOf(err)]
}

// alertOf is the alert that the other side ended the connection with, or empty.
// Its type is not exported.
func alertOf(err error) string {
	var remote *net.OpError
	if errors.As(err, &remote) && remote.Op == "remote error" {
		return remote.Err.Error()
	}
	return ""
}

// refusals are the alerts that stand for a setting, here or there.
var refusals = map[string]bool{
	"tls: handshake failure":              true,
	"tls: bad certificate":                true,
	"tls: unsupported certificate":        true,
	"tls: revoked certificate":            true,
	"tls: expired certificate":            true,
	"tls: unknown certificate":            true,
	"tls: unknown certificate authority":  true,
	"tls: access denied":                  true,
	"tls: error decrypting message":       true, // another key of an authority of the same name
	"tls: protocol version not supported": true,
	"tls: insufficient security level":    true,
	"tls: certificate required":           true,
}

// alertWithin bounds the look for an alert that has already arrived.
const alertWithin = 100 * time.Millisecond

// heardConn is a TLS connection whose first write, where it fails, says why the
// server closed. In TLS 1.3 the client is through with its handshake before the
// server has looked at the client's certificate: whether the refusal is then met
// as an alert or as a broken pipe is a matter of chance.
type heardConn struct {
	*tls.Conn
	wrote atomic.Bool
}

func (c *heardConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	// Nobody else reads before the answer to the first write.
	if first := !c.wrote.Swap(true); err == nil || !first {
		return n, err
	}
	_ = c.SetReadDeadline(time.Now().Add(alertWithin))
	if _, heard := c.Read(make([]byte, 1)); alertOf(heard) != "" {
		err = fmt.Errorf("%w (%w)", heard, err)
	}
	return n, err
}
