#!/usr/bin/env bash
# The recipe of a release (config/release.sh) in a copy of this tree: what it refuses, what it says it would make, and what it makes of a
# ready program, with planted faults that it must find. Nothing is compiled. PD_PROXY names the program (default: target/release/pd-proxy).
# Needs root for Debian's buildah, and packages of PyPI; exit status 77: they can't be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh
bounded "${RELEASE_SECONDS:-600}" "$0" "$@"
program=${PD_PROXY:-target/release/pd-proxy}
[[ -x $program ]] || { echo "release: $program is not there: build it, or set PD_PROXY" >&2; exit 1; }
command -v apt-get >/dev/null || not_run "there is no apt-get to fetch buildah with"
debian buildah
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree"
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- -cf - | tar -xf - -C "$work/tree"
python3 tests/release.py --program "$(realpath "$program")" --tree "$work/tree"
echo "release: ok"
