#!/usr/bin/env bash
# Makes what a release hands out, in dist/VERSION, and prints the commands that upload it; nothing is uploaded. It makes a static program in an
# archive, the wheel, the image, the chart, the list of crates (CycloneDX), the version's part of the changelog, and checksums.
#   config/release.sh [--dry-run] [--program FILE] [--wheel FILE]
# --dry-run checks the tree and says what would be made. --program and --wheel are of these sources already, and are not built. SKIP="image
# chart" leaves steps out (program, wheel, image, chart). PGO=no builds once in place of twice (benches/pgo/dist.sh). TARGET is the program's
# (default: this machine's with musl); run it on a machine of each kind. How fast musl is with mimalloc was not measured beside glibc:
# TARGET=x86_64-unknown-linux-gnu makes the same of a program for this machine's glibc, with its libraries in the image, as the Dockerfile does.
# The tree must be clean and say the same version everywhere, and the changelog must have a dated section for it (release.py). Needs Debian's
# musl-tools and buildah, which are installed for root, rustup for the target, and packages of PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/real/fetch.sh

fail() { echo "release: $1" >&2; exit 1; }
usage() { echo "usage: $0 [--dry-run] [--program FILE] [--wheel FILE]" >&2; exit 2; }
dry='' program='' wheel='' tags=()
while (($# > 0)); do
    case "$1" in
        --dry-run) dry=1 ;;
        --program | --wheel)
            [[ -f "${2:-}" ]] || { echo "release: $1 wants a file" >&2; usage; }
            declare "${1#--}=$(realpath "$2")"
            shift ;;
        *) usage ;;
    esac
    shift
done
target="${TARGET:-$(uname -m)-unknown-linux-musl}"
pgo="${PGO:-yes}"
version="$(python3 config/release.py check)"
out="dist/$version"
name="pd-proxy-$version-$target"
# One time for all files, so that the same sources give the same bytes.
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)"
export SOURCE_DATE_EPOCH

skips() { [[ " ${SKIP:-} " == *" $1 "* ]]; }

# step NAME FILE: true if it is to be made; says so.
step() {
    if skips "$1"; then echo "release: NOT MADE: $1, SKIP names it"; return 1; fi
    echo "release: $out/$2"
    [[ -z "$dry" ]]
}

# Sets `python` and the path: what makes wheels and charts, and reads lists of crates.
tools() {
    venv "${TMPDIR:-/tmp}/pd-proxy-release-1"
    "$python" -c 'import cyclonedx, helm_python, jsonschema' 2>/dev/null && [[ -x ${python%/*}/maturin ]] ||
        fetch reaches_python "maturin, Helm's engine and CycloneDX" "$pip" install --quiet --disable-pip-version-check \
            maturin==1.16.0 helm-python-sdk==0.2.2 'cyclonedx-python-lib[json-validation]==11.12.0'
    PATH=${python%/*}:$PATH
}

# Sets `program`; what it was built with is exported, so that the wheel's is the same.
build() {
    export CARGO_BUILD_TARGET="$target"
    [[ -d $(rustc --print sysroot)/lib/rustlib/$target ]] || rustup target add "$target" || fail "there is no Rust for $target"
    command -v musl-gcc >/dev/null || [[ $target != *-musl ]] || debian musl-tools
    case "$pgo" in
        no) program="$(benches/pgo/dist.sh)" ;;
        yes)
            program="$(benches/pgo/dist.sh --pgo)"
            export RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-use=$(realpath "${CARGO_TARGET_DIR:-target}/$target"/pgo-*.profdata)" ;;
        *) fail "PGO is yes or no, not '$pgo'" ;;
    esac
}

# The program with what a system wants to have beside it, in a folder of its own.
archive() {
    local folder="$work/$name" what
    install -D "$program" "$folder/pd-proxy"
    install -D -m 644 -t "$folder" LICENSE config/minimal.toml config/systemd/pd-proxy.service
    for what in man bash zsh fish; do "$program" generate "$what" >"$folder/pd-proxy.${what/man/1}"; done
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -cf - "$name" | gzip -n >"$out/$name.tar.gz"
}

# The Dockerfile's last stage, with this program in place of the one that its first stage builds.
image() {
    local context="$work/context"
    store() { buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs "$@"; }
    command -v buildah >/dev/null || debian buildah
    install -D "$program" "$context/image/pd-proxy"
    install -D -m 644 LICENSE "$context/image/LICENSE"
    # Of a static program it lists nothing.
    { ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true; } | xargs -r cp --parents --dereference --target-directory="$context/image"
    mkdir "$context/image/etc"
    echo 'hosts: files dns' >"$context/image/etc/nsswitch.conf"
    sed -n '/^FROM scratch/,$p' Dockerfile >"$context/Dockerfile"
    store build --quiet --isolation chroot --format docker --timestamp "$SOURCE_DATE_EPOCH" --build-context build="$context" \
        --file "$context/Dockerfile" --tag "pd-proxy:$version" "$context" >/dev/null
    store push --quiet "pd-proxy:$version" "docker-archive:$out/$name-image.tar:pd-proxy:$version"
}

uploads() {
    echo "release: all is made. To upload it, with REGISTRY being yours:"
    sed 's/^/  /' <<COMMANDS
git tag --annotate v$version --message "pd-proxy $version" $(git rev-parse HEAD)
git push origin v$version
gh release create v$version --title "pd-proxy $version" --notes-file $out/NOTES.md $out/*
COMMANDS
    skips wheel || echo "  twine upload $out/*.whl"
    skips image || echo "  skopeo copy docker-archive:$out/$name-image.tar docker://REGISTRY/pd-proxy:$version-${target%%-*}"
    skips chart || echo "  helm push $out/pd-proxy-$version.tgz oci://REGISTRY/charts"
}

[[ ! -e "$out" ]] || fail "$out is there already: remove it"
if [[ -z "$dry" ]]; then
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    tools
    [[ -n "$program" ]] || build
    said="$("$program" --version)"
    [[ $said == "pd-proxy $version" ]] || fail "$program says '$said', this is $version"
    [[ $target != *-musl ]] || ! readelf --program-headers "$program" | grep -q INTERP || fail "$program is not static: name its TARGET"
    mkdir -p "$out"
fi
if step program "$name.tar.gz"; then archive; fi
if step wheel "pd_proxy-$version-*.whl, and its list of crates: $name.cdx.json"; then
    if [[ -n "$wheel" ]]; then
        cp "$wheel" "$out"
    else
        # A static program runs beside every C library.
        [[ $target != *-musl ]] || tags=(--compatibility manylinux2014 musllinux_1_2)
        PD_PROXY="$program" config/wheel.sh --out "$out" --target "$target" "${tags[@]}"
    fi
    "$python" config/release.py sbom "$out"/pd_proxy-*.whl "$out/$name.cdx.json" "$target"
fi
if step image "$name-image.tar"; then image; fi
if step chart "pd-proxy-$version.tgz"; then "$python" config/release.py chart "$out"; fi
echo "release: $out/NOTES.md, $out/SHA256SUMS"
[[ -z "$dry" ]] || { echo "release: nothing was made"; exit 0; }
python3 config/release.py notes >"$out/NOTES.md"
(cd "$out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
uploads
