module github.com/tierlock/tierlock

go 1.25.0
