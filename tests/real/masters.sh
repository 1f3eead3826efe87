# Real Mooncake masters from their packages: for scripts to source, with `set -euo pipefail` on and inside the repository.
#
# What is fetched stays in $MOONCAKE_SITES (default: pd-mooncake in the temporary directory). Wants root for packages of the
# system that are missing, and for a network namespace: the transfer engines of clients, and the admin port of masters
# before 0.3.13, listen on all addresses. Without one they do so, which is said.

sites=${MOONCAKE_SITES:-${TMPDIR:-/tmp}/pd-mooncake}
# Of a script that can't run here: nothing was compared. Any other failure is one.
NOT_RUN=77
net=pdmooncake$$
inside=()
started=()
mkdir -p "$sites"

cleanup() {
  local pid
  for pid in "${started[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
  [ ${#inside[@]} -eq 0 ] || ip netns del "$net" 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# bounded SECONDS SCRIPT ARGUMENTS… : starts the calling script anew, to be ended after so many seconds
bounded() {
  local seconds=$1
  shift
  [ -z "${MOONCAKE_BOUNDED:-}" ] || return 0
  MOONCAKE_BOUNDED=1 exec timeout --kill-after=15 "$seconds" "$@"
}

not_run() {
  echo "NOT RUN: $*"
  exit "$NOT_RUN"
}

# fetch WHAT COMMAND… : runs it with one more try. If it fails and the index does not even give what is always there,
# the script can't run here; else that is a failure.
fetch() {
  local what=$1 tries
  shift
  for tries in 1 2; do
    timeout 150 "$@" && return
  done
  rm -rf "$sites/reach"
  if ! timeout 60 "$sites/venv/bin/pip" download --quiet --disable-pip-version-check --retries 1 --no-deps --dest "$sites/reach" six; then
    not_run "no package index can be reached, and $what is not here yet"
  fi
  echo "$what can't be had although the package index answers" >&2
  exit 1
}

# The Python that fetches and fills.
venv() {
  [ -x "$sites/venv/bin/pip" ] || python3 -m venv --clear "$sites/venv"
}

# debian PACKAGE… : installs those that are missing
debian() {
  local package missing=()
  for package; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  apt-get update -qq || true
  fetch "${missing[*]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# package DIRECTORY NAME : unpacks a package of the index, unless it is there
package() {
  [ -d "$sites/$1" ] && return
  rm -rf "$sites/$1.part"
  fetch "$2" "$sites/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$sites/$1.part" "$2"
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
      apt-get update -qq || true
      fetch etcd-server apt-get download -qq etcd-server
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
