#!/usr/bin/env bash
# Prints the path of a tool in the version that this repository is checked with,
# and installs it under .cache/bin first where PATH has another or none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
staticcheck) package=honnef.co/go/tools/cmd/staticcheck version=v0.8.2 ;;
govulncheck) package=golang.org/x/vuln/cmd/govulncheck version=v1.9.0 ;;
*)
	echo "usage: tool.sh staticcheck|govulncheck" >&2
	exit 2
	;;
esac

# A tool that was built with an older Go cannot read what a newer one accepts,
# so the version of Go counts as well.
go="$(go env GOVERSION)"
fits() {
	local built
	built="$(go version -m "$1" 2>/dev/null)" || return 1
	case "$built" in
	*": $go"*"$version"*) return 0 ;;
	esac
	return 1
}

if found="$(command -v "$1")" && fits "$found"; then
	echo "$found"
	exit 0
fi
bin="$PWD/.cache/bin/$version-$go"
if ! fits "$bin/$1"; then
	echo "installing $1 $version" >&2
	GOBIN="$bin" GOWORK=off go install "$package@$version" >&2
fi
echo "$bin/$1"
