# For people in a checkout. .ci/run does the same without make.
.PHONY: test check demo bench deps lint ci

# Every module's tests, on real servers.
test: deps
	./scripts/test.sh

# The whole search of the chain's state machine, some five minutes. The tests, with
# the race detector, run a small part of it.
check:
	GOWORK=off go test -timeout 30m ./degrade

# A tour that needs nothing but Go.
demo:
	cd examples && GOWORK=off go run ./quickstart

# Against other libraries, over Redis and MySQL, some fifteen minutes; bench/README.md has the options.
bench: deps
	cd bench && GOWORK=off go run .

# What the tests need besides Go: Redis, MariaDB and a C compiler.
deps:
	./scripts/deps.sh

lint:
	./scripts/lint.sh

ci:
	./.ci/run
