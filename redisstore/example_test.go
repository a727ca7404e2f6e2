package redisstore_test

import (
	"crypto/tls"
	"crypto/x509"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/redisstore"
)

// The examples here are compiled and not run: they name servers that are not
// there. docs/redis.md shows the same.

func ExampleOpen() {
	store, err := redisstore.Open(redisstore.RecommendedOptions("10.0.0.1:6379"))
	if err != nil {
		log.Fatal(err) // the options or the server's answer; a server that is down is no error
	}
	defer store.Close()
	locker, err := tierlock.New(tierlock.Config{
		App: "order", Namespace: "prod", Stores: []tierlock.Store{store},
		Resources: []tierlock.Resource{{Name: "order:settle", Wait: 3 * time.Second}},
	})
	if err != nil {
		log.Fatal(err)
	}
	_ = locker
}

func ExampleOpen_sentinel() {
	opt := redisstore.RecommendedOptions("10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379")
	opt.Sentinel.MasterSet = "mymaster"
	store, err := redisstore.Open(opt)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
}

func ExampleOpen_cluster() {
	opt := redisstore.RecommendedOptions("cluster.example:6379") // a name for all nodes
	opt.ForceSingleClient = false                                // since one address alone would mean one server
	store, err := redisstore.Open(opt)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
}

func ExampleOpen_tls() {
	authority, err := os.ReadFile("redis-ca.pem")
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	cert, err := tls.LoadX509KeyPair("order.pem", "order-key.pem")
	if err != nil {
		log.Fatal(err)
	}
	opt := redisstore.RecommendedOptions("redis.example:6380")
	opt.TLSConfig = &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}}
	store, err := redisstore.Open(opt)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
}

// A password that changes while the process runs: whoever learns the new one
// stores it here, before the server is told.
func ExampleOpen_rotatingPassword() {
	var password atomic.Pointer[string]
	first := os.Getenv("REDIS_PASSWORD")
	password.Store(&first)

	opt := redisstore.RecommendedOptions("10.0.0.1:6379")
	opt.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		return rueidis.AuthCredentials{Username: "order", Password: *password.Load()}, nil
	}
	store, err := redisstore.Open(opt)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
}

// A proxy that knows neither RESP3 nor messages, on a machine that is often short
// of processor.
func ExampleOpenWith() {
	opt := redisstore.RecommendedOptions("proxy.example:6379")
	opt.AlwaysRESP2 = true
	store, err := redisstore.OpenWith(opt, redisstore.Options{NoPush: true, CallTimeout: 2 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
}

// A client that the service has anyway.
func ExampleNew() {
	client, err := rueidis.NewClient(redisstore.RecommendedOptions("10.0.0.1:6379"))
	if err != nil {
		log.Fatal(err) // also where the server is down, unlike Open
	}
	defer client.Close() // after the store
	store := redisstore.New(client, redisstore.Options{})
	defer store.Close()
}
