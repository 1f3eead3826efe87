# Real Mooncake masters from their packages: for scripts to source, with `set -euo pipefail` on and inside the repository.
#
# What is fetched stays in $MOONCAKE_SITES (default: pd-mooncake in the temporary directory). Wants root for packages of the
# system that are missing, and for a network namespace: the transfer engines of clients, and the admin port of masters
# before 0.3.13, listen on all addresses. Without one they do so, which is said.

sites=${MOONCAKE_SITES:-${TMPDIR:-/tmp}/pd-mooncake}
net=pdmooncake$$
inside=()
started=()
mkdir -p "$sites"
. tests/real/fetch.sh

cleanup() {
  local pid
  for pid in "${started[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
  [ ${#inside[@]} -eq 0 ] || ip netns del "$net" 2>/dev/null || true
}
trap cleanup EXIT

# package DIRECTORY NAME : unpacks a package of the index, unless it is there
package() {
  [ -d "$sites/$1" ] && return
  rm -rf "$sites/$1.part"
  fetch reaches_python "$2" "$pip" install --quiet --disable-pip-version-check --no-deps --target "$sites/$1.part" "$2"
  mv "$sites/$1.part" "$sites/$1"
}

# etcd : fetches Debian's, without installing it, and sets `etcd`
etcd() {
  etcd=$sites/etcd/usr/bin/etcd
  [ -x "$etcd" ] && return
  rm -rf "$sites/etcd.part"
  mkdir -p "$sites/etcd.part"
  (
    cd "$sites/etcd.part"
    apt-get download -qq etcd-server 2>/dev/null || {
      timeout 120 apt-get update -qq || true
      fetch reaches_debian etcd-server apt-get download -qq etcd-server
    }
    dpkg -x etcd-server_*.deb .
  )
  mv "$sites/etcd.part" "$sites/etcd"
}

# master_of VERSION : fetches it and sets `site` and `libs`
master_of() {
  package "site-$1" "mooncake-transfer-engine-non-cuda==$1"
  site=$sites/site-$1
  libs=$site/mooncake:$(ls -d "$site"/*.libs | head -1)
  case $1 in
    # These want the CUDA runtime although they don't use it.
    0.3.12*|0.3.13) package site-cudart nvidia-cuda-runtime-cu12; libs=$libs:$sites/site-cudart/nvidia/cuda_runtime/lib;;
  esac
}

# namespace : where everything runs from here on: "${inside[@]}" COMMAND…
namespace() {
  if command -v ip >/dev/null && ip netns add "$net" 2>/dev/null; then
    inside=(ip netns exec "$net")
    "${inside[@]}" ip link set lo up
  else
    echo "no network namespace can be made: what listens on all addresses does"
  fi
}

# start LOG COMMAND… : in the background, with the libraries of `libs`; sets `last`
start() {
  local log=$1
  shift
  LD_LIBRARY_PATH=$libs PYTHONPATH=$site "${inside[@]}" "$@" >"$log" 2>&1 &
  last=$!
  started+=("$last")
}

# wait_for PID LOG COMMAND… : until it succeeds, for two minutes, while PID lives
wait_for() {
  local pid=$1 log=$2
  shift 2
  for _ in $(seq 600); do
    "$@" >/dev/null 2>&1 && return
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.2
  done
  echo "in vain: $*" >&2
  tail -n 5 "$log" >&2
  return 1
}

# stop PID… : and waits for their end
stop() {
  kill -KILL "$@" 2>/dev/null || true
  wait "$@" 2>/dev/null || true
}

libraries=(libibverbs1 librdmacm1 libnuma1 libcurl4)
