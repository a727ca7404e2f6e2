#!/usr/bin/env bash
# Prints the folder of each Go module of this repository, one a line, relative
# to its top, the root module (.) first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# New files count before they are added; ignored ones do not. Where git cannot
# tell (an unpacked archive, a checkout of another user's), look for ourselves.
files="$(git ls-files --cached --others --exclude-standard -- go.mod '*/go.mod' 2>/dev/null || true)"
if [ -z "$files" ]; then
	files="$(find . -name '.?*' -prune -o -name go.mod -type f -print)"
fi
printf '%s\n' "$files" | while IFS= read -r file; do
	file="${file#./}"
	case "/$file" in
	*/testdata/* | */vendor/*) continue ;;
	esac
	# Listed by git, but deleted in the working tree.
	[ -f "$file" ] || continue
	dirname "$file"
done | LC_ALL=C sort -u
