#!/usr/bin/env bash
# The Dockerfile's image: built by buildah, unpacked by umoci, run by runc, asked by image.py. No daemon and no image registry are needed, so that
# it runs where there is neither: the image that the first stage begins with is made here, of the same Debian and this machine's toolchain.
# Everything behind that first line is the Dockerfile's own. By hand: needs root, Debian, and half an hour, of which most is the build;
# with PGO=no a third of that. IMAGE_DIR keeps what was made for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."

not_here() {
    echo "image: $1" >&2
    exit 77
}
[[ $(id -u) == 0 ]] || not_here "needs root"
command -v apt-get >/dev/null || not_here "needs Debian's packages"

kept="${IMAGE_DIR:-}"
work="${kept:-$(mktemp -d)}"
mkdir -p "$work"
# Files of the containers may belong to others.
cleanup() { [[ -n "$kept" ]] || rm -rf "$work"; }
trap cleanup EXIT

tools=()
for tool in buildah umoci runc debootstrap; do
    command -v "$tool" >/dev/null || tools+=("$tool")
done
((${#tools[@]} == 0)) || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${tools[@]}" >/dev/null

pgo=${PGO:-yes}
# It goes into the image with the rest of the toolchain.
[[ $pgo == no ]] || rustup component add llvm-tools || not_here "rustup's component llvm-tools can't be had: PGO=no goes without"

store() { buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs "$@"; }

base=$(awk '$1 == "FROM" { print $2; exit }' Dockerfile)
if ! store inspect --type image "$base" >/dev/null 2>&1; then
    echo "image: making a stand-in for $base"
    root=$work/base
    rm -rf "$root"
    debootstrap --variant=minbase --include=gcc,libc6-dev,ca-certificates,python3 bookworm "$root" >"$work/debootstrap.log" ||
        { tail -n 5 "$work/debootstrap.log" >&2; exit 1; }
    cp -a "$(rustc --print sysroot)" "$root/usr/local/rust"
    # Whoever this machine believes when it fetches crates.
    cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/certs/ca-certificates.crt"
    container=$(store from scratch)
    store copy --quiet "$container" "$root" / >/dev/null
    store config --env PATH=/usr/local/rust/bin:/usr/local/bin:/usr/bin:/bin --env CARGO_HOME=/usr/local/cargo \
        --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt "$container"
    store commit --quiet --rm "$container" "$base" >/dev/null
    rm -rf "$root"
fi

# Of Docker's own format: OCI's has no HEALTHCHECK.
store build --isolation chroot --pull-never --format docker --layers=false --build-arg PGO="$pgo" --tag pd-proxy:test .
store inspect --type image pd-proxy:test >"$work/image.json"
rm -rf "$work/oci" "$work/bundle"
store push --quiet pd-proxy:test "oci:$work/oci:test"
umoci unpack --image "$work/oci:test" "$work/bundle" >/dev/null 2>&1
[[ -n "${PD_PROXY:-}" ]] || cargo build --release --locked --quiet
python3 tests/image.py --engine "${PD_PROXY:-target/release/pd-proxy}" --image "$work/image.json" --bundle "$work/bundle"
