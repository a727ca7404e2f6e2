# For people in a checkout. .ci/run does the same without make.
.PHONY: test demo deps lint ci

# Every module's tests, on real servers.
test: deps
	./scripts/test.sh

# A tour that needs nothing but Go.
demo:
	cd examples && GOWORK=off go run ./quickstart

# What the tests need besides Go.
deps:
	./scripts/deps.sh

lint:
	./scripts/lint.sh

ci:
	./.ci/run
