# For people in a checkout. .ci/run does the same without make.
.PHONY: test demo bench deps lint ci

# Every module's tests, on real servers.
test: deps
	./scripts/test.sh

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
