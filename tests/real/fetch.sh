# Getting what a script compares us with: for scripts to source, with `set -euo pipefail` on. Root is wanted where packages of the
# system are missing.
#
# A script that can't reach an index of packages ends with status 77: nothing was compared. Any other failure is one.

NOT_RUN=77
trap 'exit 130' INT
trap 'exit 143' TERM

# bounded SECONDS SCRIPT ARGUMENTS… : starts the calling script anew, to be ended after so many seconds
bounded() {
  local seconds=$1
  shift
  [ -z "${BOUNDED:-}" ] || return 0
  BOUNDED=1 exec timeout --kill-after=15 "$seconds" "$@"
}

not_run() {
  echo "NOT RUN: $*"
  exit "$NOT_RUN"
}

# fetch PROBE WHAT COMMAND… : runs it with one more try. If it fails and PROBE does, too, the script can't run here; else that
# is a failure.
fetch() {
  local probe=$1 what=$2 tries
  shift 2
  for tries in 1 2; do
    timeout 150 "$@" && return
  done
  "$probe" || not_run "no package index can be reached, and $what is not here yet"
  echo "$what can't be had although the package index answers" >&2
  exit 1
}

# Whether an index gives what is always there.
reaches_python() {
  local there status=0
  there=$(mktemp -d)
  timeout 60 "$pip" download --quiet --disable-pip-version-check --retries 1 --no-deps --dest "$there" six || status=$?
  rm -rf "$there"
  return "$status"
}
reaches_debian() {
  timeout 120 apt-get update -qq -o APT::Update::Error-Mode=any
}

# venv DIRECTORY [PYTHON] : a Python of our own; sets `python` and `pip`
venv() {
  python=$1/bin/python pip=$1/bin/pip
  [ -x "$pip" ] || "${2:-python3}" -m venv --clear "$1"
}

# debian PACKAGE… : installs those that are missing
debian() {
  local package missing=()
  for package; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" != 0 ]; then
    echo "${missing[*]}: to be installed by root" >&2
    exit 1
  fi
  timeout 120 apt-get update -qq || true
  fetch reaches_debian "${missing[*]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
}
