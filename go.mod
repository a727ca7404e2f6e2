module github.com/tierlock/tierlock

go 1.25.0

require (
	github.com/cenkalti/backoff/v4 v4.3.0
	github.com/redis/rueidis v1.0.79
	golang.org/x/sync v0.22.0
)

require golang.org/x/sys v0.47.0 // indirect
