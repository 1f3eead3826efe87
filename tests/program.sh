# The program under test, for scripts to source: `program` is afterwards what PD_PROXY names, or the release build.
program=${PD_PROXY:-target/release/pd-proxy}
[[ -x $program ]] || { echo "$(basename "$0" .sh): $program is not there: build it, or set PD_PROXY" >&2; exit 1; }
