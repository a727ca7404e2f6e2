#!/usr/bin/env bash
# Runs the tests of every module, or of the folders given as arguments. A module
# that fails does not keep the others from running; the exit code tells.
#
# TEST_MINUTES bounds the whole run, compiling included (default 24). What failed is
# told again at the end.
set -euo pipefail
scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$scripts/.."

# Off, so that each module is tested with the requirements that its user gets.
export GOWORK=off

minutes="${TEST_MINUTES:-24}"
end=$((SECONDS + minutes * 60))

if [ "$#" -eq 0 ]; then
	modules="$("$scripts/modules.sh")"
	while IFS= read -r module; do
		set -- "$@" "$module"
	done <<<"$modules"
fi

# Most of the tests that run side by side wait for a server or for a time: two for a
# processor leave it less idle.
beside=$((2 * $(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)))

# All output goes to a file, too.
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
exec 3>&1 > >(tee "$log" >&3) 2>&1

# Each go test runs in a process group of its own, which this ends when it is
# interrupted: otherwise the tests would go on alone.
set -m
pid=
trap '[ -z "$pid" ] || kill -TERM -- "-$pid" 2>/dev/null; exit 130' INT TERM HUP

failed=()
for module in "$@"; do
	left=$((end - SECONDS))
	if [ "$left" -le 0 ]; then
		echo "test: $module: not run, the $minutes minutes are over"
		failed+=("$module")
		continue
	fi
	echo "test: module $module"
	# -timeout is a single package's and shows its goroutines. It starts when
	# the package is built, so the command as a whole has a bound, too, where
	# the system can set one.
	limit=()
	if command -v timeout >/dev/null; then
		limit=(timeout --kill-after=10 "$left")
	fi
	status=0
	(cd "$module" && exec ${limit[@]+"${limit[@]}"} go test -mod=readonly -race -shuffle=on -parallel "$beside" -timeout 12m ./...) &
	pid=$!
	wait "$pid" || status=$?
	pid=
	if [ "$status" -ne 0 ]; then
		[ "$status" -ne 124 ] || echo "test: $module: ended, the $minutes minutes are over"
		failed+=("$module")
	fi
done

if [ "${#failed[@]}" -gt 0 ]; then
	sleep 1 # tee may be behind
	echo "test: what failed, in the order of its output:"
	# Of a package that ran out of time, the tests that were still running.
	grep -E '^ *--- FAIL|^FAIL|^panic: |^\s+Test[^ ]+ \([0-9hms.]+\)$|DATA RACE|^test: module|\[build failed\]' "$log" >&3 || true
	echo "test: FAILED in ${failed[*]}"
	exit 1
fi
