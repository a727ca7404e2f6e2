#!/usr/bin/env bash
# Runs govulncheck on every module. A vulnerability found fails; a database that
# cannot be reached is said in one line and does not.
set -euo pipefail
scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$scripts/.."
export GOWORK=off

# Within the time given, where the system can set a bound.
within() {
	local seconds="$1"
	shift
	if command -v timeout >/dev/null; then
		timeout --kill-after=10 "$seconds" "$@"
	else
		"$@"
	fi
}

# Installing may compile for minutes.
if ! govulncheck="$(within 300 "$scripts/tool.sh" govulncheck 2>&1)"; then
	echo "vuln: not checked, govulncheck cannot be installed: ${govulncheck##*$'\n'}"
	exit 0
fi
govulncheck="${govulncheck##*$'\n'}" # after what installing it said

end=$((SECONDS + 60))
status=0
modules="$("$scripts/modules.sh")"
while IFS= read -r module; do
	left=$((end - SECONDS))
	code=0
	output="$(cd "$module" && within "$((left > 0 ? left : 1))" "$govulncheck" ./... 2>&1)" || code=$?
	case "$code" in
	0) ;;
	3) # its code for "found"
		printf '%s\n' "$output"
		echo "vuln: found in module $module"
		status=1
		;;
	124 | 137)
		echo "vuln: module $module not checked, the 60 s are over"
		;;
	*)
		case "$output" in
		*"fetching vulnerabilities"*)
			echo "vuln: not checked, the database cannot be reached"
			exit "$status"
			;;
		esac
		printf '%s\n' "$output"
		echo "vuln: govulncheck failed in module $module"
		status=1
		;;
	esac
done <<<"$modules"
exit "$status"
