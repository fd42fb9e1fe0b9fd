#!/usr/bin/env bash
# Installs what the tests run that is neither Python, Go nor Node: COMMAND=PACKAGE for each, with apt
# where that is possible (as root), else it says what is missing. Does nothing for a command on PATH.
set -euo pipefail

# Not an error: the tests that need it are skipped, but for CI, where they fail.
missing() {
	echo "system: not installed, and some tests are skipped without: ${packages[*]}" >&2
}

packages=()
for pair in "$@"; do
	command -v "${pair%%=*}" >/dev/null || packages+=("${pair#*=}")
done
((${#packages[@]})) || exit 0

if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
	missing
	exit 0
fi

echo "system: ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
install() {
	apt-get install --yes --quiet=2 --no-install-recommends "${packages[@]}" >/dev/null
}
# The lists of packages are missing or old on a fresh machine.
install 2>/dev/null || { apt-get update --quiet=2 >/dev/null && install; } || missing
