#!/usr/bin/env bash
# pd-proxy's discovery before a real kube-apiserver and a real etcd: pods that come, are ready, drain and go, the API server killed
# and started again, and the rights of config/kubernetes/rbac.yaml. More in kubernetes.py. By hand: building the server takes a
# quarter of an hour, once.
#
#   tests/real/kubernetes.sh            everything
#   tests/real/kubernetes.sh record     records tests/captures/kubernetes anew
#
# The server is built from Debian's source package, which is kept with what was built in $CACHE (default ~/.cache/pd-proxy/kubernetes).
# PD_PROXY names a program that is built, KUBE_APISERVER a server. Exit status 0: all as it should be; 77: NOT RUN, and why.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/real/fetch.sh
bounded "${KUBERNETES_SECONDS:-7200}" tests/real/kubernetes.sh "$@"

CACHE=${CACHE:-$HOME/.cache/pd-proxy/kubernetes}
mkdir -p "$CACHE"

# The newest source package of Kubernetes in the first of apt's indexes that has one.
source_package() {
  local mirror suite
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 -E '/debian/?$' || true)
  suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  [ -n "$mirror" ] && [ -n "$suite" ] || not_run "no Debian mirror is configured"
  echo "deb-src $mirror $suite main" > "$CACHE/sources.list"
  options=(-o "Dir::Etc::sourcelist=$CACHE/sources.list" -o "Dir::Etc::sourceparts=-" -o "Dir::State::lists=$CACHE/lists")
  mkdir -p "$CACHE/lists/partial"
  timeout 300 apt-get "${options[@]}" update -qq || not_run "the Debian mirror's index of sources can't be had"
  (cd "$CACHE" && timeout 900 apt-get "${options[@]}" source --download-only -qq kubernetes) || not_run "Kubernetes' source package can't be had"
}

# Builds kube-apiserver; sets `apiserver`.
build() {
  apiserver=${KUBE_APISERVER:-$CACHE/kube-apiserver}
  [ ! -x "$apiserver" ] || return 0
  debian golang-go make rsync dpkg-dev
  source_package
  local archive tree
  archive=$(ls "$CACHE"/kubernetes_*.orig.tar.* | tail -1)
  tree=$CACHE/tree
  rm -rf "$tree"
  mkdir -p "$tree"
  tar -xf "$archive" -C "$tree" --strip-components=1
  local version=${archive##*really}
  version=v${version##*kubernetes_}
  version=${version%.orig.tar.*}
  printf "KUBE_GIT_COMMIT=''\nKUBE_GIT_TREE_STATE='archive'\nKUBE_GIT_VERSION='%s'\nKUBE_GIT_MAJOR='1'\nKUBE_GIT_MINOR='%s'\n" \
    "$version" "$(echo "$version" | cut -d. -f2)" > "$CACHE/version"
  (cd "$tree" && KUBE_GIT_VERSION_FILE=$CACHE/version nice make WHAT=cmd/kube-apiserver) \
    || { echo "kube-apiserver does not build" >&2; exit 1; }
  cp "$tree/_output/bin/kube-apiserver" "$apiserver"
  rm -rf "$tree"
}

command -v apt-get > /dev/null || [ -x "${KUBE_APISERVER:-}" ] || not_run "no apt-get here, and KUBE_APISERVER names no server"
command -v etcd > /dev/null || debian etcd-server
command -v openssl > /dev/null || debian openssl
build
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
if [ "${1:-}" = record ]; then
  PYTHONDONTWRITEBYTECODE=1 python3 tests/real/kubernetes_record.py "$apiserver" "$run/it" tests/captures/kubernetes
  exit
fi
program=${PD_PROXY:-target/debug/pd-proxy}
[ -n "${PD_PROXY:-}" ] || cargo build --locked --all-features
PYTHONDONTWRITEBYTECODE=1 python3 tests/real/kubernetes.py "$apiserver" "$run/it" "$(realpath "$program")"
