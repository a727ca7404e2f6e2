package rig

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority of this test's own, with one
// certificate for servers on the loopback interface and one for clients.
type Authority struct {
	// Pool holds the authority's own certificate, for who checks the others.
	Pool *x509.CertPool
	// Client is the certificate that a client shows where the server asks.
	Client tls.Certificate

	dir string // ca.pem, server.pem, server.key
}

// NewAuthority makes an authority and its certificates. Two of them do not
// trust each other.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	dir := t.TempDir() // its last part is a number, so two authorities of a test differ in name
	a := &Authority{Pool: x509.NewCertPool(), dir: dir}
	caKey := newKey(t)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rig authority " + filepath.Base(dir)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caPEM := a.certify(t, ca, ca, caKey, caKey)
	a.Pool.AppendCertsFromPEM(caPEM)
	a.write(t, "ca.pem", caPEM)

	leaf := func(serial int64, name string, usage x509.ExtKeyUsage) (cert, key []byte) {
		k := newKey(t)
		der, err := x509.MarshalECPrivateKey(k)
		if err != nil {
			t.Fatalf("rig: %v", err)
		}
		return a.certify(t, &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			KeyUsage:    x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		}, ca, k, caKey), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	}
	cert, key := leaf(2, "rig server", x509.ExtKeyUsageServerAuth)
	a.write(t, "server.pem", cert)
	a.write(t, "server.key", key)
	var err error
	if a.Client, err = tls.X509KeyPair(leaf(3, "rig client", x509.ExtKeyUsageClientAuth)); err != nil {
		t.Fatalf("rig: %v", err)
	}
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("rig: %v", err)
	}
	return k
}

func (a *Authority) certify(t testing.TB, cert, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatalf("rig: %v", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (a *Authority) write(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, name), data, 0o600); err != nil {
		t.Fatalf("rig: %v", err)
	}
}

// RedisTLS is [Redis] with a port that speaks TLS only, with a certificate of
// a's. It asks clients for one too unless "--tls-auth-clients", "no" is among
// the arguments. Do and its kin work as ever: they do not use the port.
//
// A redis-server that was built without TLS ends at its start and says so.
func RedisTLS(t testing.TB, a *Authority, args ...string) *RedisServer {
	t.Helper()
	s := newRedis("redis-server", append([]string{
		"--tls-cert-file", filepath.Join(a.dir, "server.pem"),
		"--tls-key-file", filepath.Join(a.dir, "server.key"),
		"--tls-ca-cert-file", filepath.Join(a.dir, "ca.pem"),
	}, args...)...)
	s.tls = true
	return startRedis(t, s, nil)
}

// Certify gives a running server a certificate of a's for new connections, and
// makes a the authority that it accepts clients of.
func (a *Authority) Certify(srv *RedisServer) {
	srv.t.Helper()
	srv.Do("CONFIG", "SET",
		"tls-cert-file", filepath.Join(a.dir, "server.pem"),
		"tls-key-file", filepath.Join(a.dir, "server.key"),
		"tls-ca-cert-file", filepath.Join(a.dir, "ca.pem"))
}
