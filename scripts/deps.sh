#!/usr/bin/env bash
# Installs what the tests need besides Go: redis-server with its tools, mariadbd
# with its own, and a C compiler for the race detector. It does nothing where they
# are there.
set -euo pipefail

# have tells whether a program is on PATH or where the tests look besides: a
# server may be in a folder that only root has on PATH.
have() {
	local dir
	command -v "$1" >/dev/null && return
	for dir in /usr/sbin /usr/local/sbin /usr/libexec; do
		[ ! -x "$dir/$1" ] || return 0
	done
	return 1
}

packages=()
command -v redis-server >/dev/null || packages+=(redis-server redis-tools redis-sentinel)
if ! have mariadbd || ! have mariadb-install-db; then
	packages+=(mariadb-server)
fi
cc="$(go env CC)"
command -v "${cc%% *}" >/dev/null || packages+=(gcc libc6-dev)
[ "${#packages[@]}" -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "deps: the tests need redis-server (6.2 or later), mariadbd with mariadb-install-db (10.6 or later) and a C compiler;" >&2
	echo "deps: this system has no apt-get: install them with its own package manager and make sure that they are on PATH" >&2
	exit 1
fi

root=()
if [ "$(id -u)" -ne 0 ]; then
	if ! command -v sudo >/dev/null; then
		echo "deps: not root and no sudo; as root run: apt-get install ${packages[*]}" >&2
		exit 1
	fi
	root=(sudo)
fi
# ${root[@]+…}: an empty array counts as unset in old versions of bash.
as_root() { ${root[@]+"${root[@]}"} "$@"; }

apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@"; }

# The packages start their servers on the standard ports. The tests start their
# own elsewhere, so forbid it while installing, unless this machine has a policy
# of its own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'as_root rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
	as_root chmod 755 "$policy"
fi

echo "deps: installing ${packages[*]}"
apt update -q
# MySQL and MariaDB cannot be installed side by side: rather fail than take a
# server away that somebody uses.
if ! apt install -q -y --no-install-recommends --no-remove "${packages[@]}"; then
	echo "deps: could not install ${packages[*]}; where a package would replace MySQL, put mariadbd and mariadb-install-db on PATH by other means" >&2
	exit 1
fi

# Nor are they to start with the machine.
if command -v systemctl >/dev/null && [ -d /run/systemd/system ]; then
	for package in "${packages[@]}"; do
		case "$package" in
		redis-server | redis-sentinel) as_root systemctl disable --quiet "$package" || true ;;
		mariadb-server) as_root systemctl disable --quiet mariadb || true ;;
		esac
	done
fi
