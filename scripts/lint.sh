#!/usr/bin/env bash
# Checks format, vet, staticcheck and the tidiness of go.mod in every module. It
# changes nothing, goes on after a finding, and exits with 1 if there was any.
set -euo pipefail
scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$scripts/.."
export GOWORK=off

status=0
failed() {
	echo "lint: $1" >&2
	status=1
}

# All folders but the hidden ones; gofmt of the toolchain that go.mod picks.
unformatted="$(find . -name '.?*' -prune -o -name testdata -prune -o -name '*.go' -type f -print0 |
	xargs -0 "$(go env GOROOT)/bin/gofmt" -l)" || failed "gofmt could not read every file"
if [ -n "$unformatted" ]; then
	printf '%s\n' "$unformatted"
	failed "these files are not gofmt'ed"
fi

staticcheck="$("$scripts/tool.sh" staticcheck)" || exit 1

modules="$("$scripts/modules.sh")"
while IFS= read -r module; do
	cd "$scripts/../$module"
	go vet -mod=readonly ./... || failed "go vet found something in $module"
	"$staticcheck" ./... || failed "staticcheck found something in $module"
	go mod tidy -diff || failed "go.mod or go.sum of $module is not tidy"
done <<<"$modules"
exit "$status"
