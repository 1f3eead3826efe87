#!/usr/bin/env bash
# What cargo users expect of a clone: it holds no archive and no program, it is checked where there is no bash, a compiler wrapper in
# the environment is called for every crate, and `cargo install` from another target directory gives a program that runs. All but the
# last, with the codecs alone, take half a minute; the last is a whole release build, and is left out with the argument `quick`.
set -euo pipefail
cd "$(dirname "$0")/.."

case "$*" in
    "" | quick) ;;
    *) echo "usage: $0 [quick]" >&2; exit 2 ;;
esac
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
fail() {
    echo "build: $1" >&2
    tail -n 20 "$work/log" >&2
    exit 1
}

git ls-files >"$work/log"
if grep -E '\.(whl|zip|jar|gz|xz|zst|bz2|so|a|o|exe|pyc|class)$' "$work/log" >"$work/archives"; then
    cp "$work/archives" "$work/log"
    fail "archives and programs are not sources; these are tracked"
fi
echo "build: no archive and no program is tracked"

cargo metadata --locked --format-version 1 --manifest-path tests/fuzz/Cargo.toml >"$work/metadata" 2>"$work/log" ||
    fail "the lock file of the fuzz targets is not up to date: cd tests/fuzz && cargo update --workspace --offline"
echo "build: the lock file of the fuzz targets is up to date"

# All programs of PATH but shells other than sh.
mkdir "$work/bin"
IFS=: read -ra folders <<<"$PATH"
for folder in "${folders[@]}"; do
    for program in "$folder"/*; do
        name="${program##*/}"
        [[ $name =~ ^(bash|rbash|dash|zsh)$ || -e "$work/bin/$name" ]] || ln -s "$program" "$work/bin/$name"
    done
done
cat >"$work/wrapper" <<'WORDS'
#!/bin/sh
echo "$*" >>"${0%/*}/called"
exec "$@"
WORDS
chmod +x "$work/wrapper"

# check FOLDER VARIABLE=VALUE…: checks the codecs with these in the environment, and nothing that is known already.
check() {
    local target="$work/$1"
    shift
    env -u RUSTC_WRAPPER "$@" CARGO_TARGET_DIR="$target" CARGO_TERM_COLOR=never \
        cargo check --locked -p pd-proxy-core >"$work/log" 2>&1
}

check without-bash PATH="$work/bin" || fail "cargo check fails where there is no bash"
echo "build: cargo check works where there is no bash"

check wrapped RUSTC_WRAPPER="$work/wrapper" || fail "cargo check fails with a wrapper"
crates="$(grep -cE '^ +(Checking|Compiling) ' "$work/log")"
# Build scripts are called with the name of their own; questions to the compiler name no crate.
called="$(grep -o -- '--crate-name [^ ]*' "$work/called" | grep -vE ' (build_script_|___$)' | sort -u | wc -l)"
((called == crates)) || fail "the wrapper was called for $called crates of $crates"
echo "build: a wrapper of the compiler is called for each of $crates crates"

[[ "$*" != quick ]] || exit 0
cargo install --locked --path . --root "$work/root" --target-dir "$work/install" >"$work/log" 2>&1 || fail "cargo install fails"
said="$("$work/root/bin/pd-proxy" --version)"
[[ $said == "pd-proxy "* ]] || fail "the installed program says '$said'"
echo "build: cargo install gives $said"
