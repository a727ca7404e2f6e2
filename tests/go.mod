module github.com/tierlock/tierlock/tests

go 1.25.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/go-sql-driver/mysql v1.10.1
	github.com/jmoiron/sqlx v1.4.0
	github.com/redis/rueidis v1.0.79
	github.com/tierlock/tierlock v0.0.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.47.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/cenkalti/backoff/v4 v4.3.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
)

replace github.com/tierlock/tierlock => ../
