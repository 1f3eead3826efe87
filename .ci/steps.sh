# Functions of .ci/run and .ci/full, which source this file: steps under headings, each in a process
# group of its own, and the list of what was skipped. `SKIP="docs kill"` leaves steps out by name.

export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"
SKIP="${SKIP:-}"
skipped=()
durations=()
child=""

# Ends what the current step left running in the background.
end_child() {
    if [[ -n "$child" ]]; then kill -TERM -- "-$child" 2>/dev/null || true; fi
    child=""
}
on_exit=(end_child)
run_on_exit() {
    local action
    for action in "${on_exit[@]}"; do "$action"; done
}
trap run_on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

heading() {
    printf '\n=== %s (after %d s)\n' "$*" "$SECONDS"
}

# skip NAME WHY: prints that a step did not run, and why.
skip() {
    heading "$1: NOT RUN: $2"
    skipped+=("$1")
}

# Runs `step NAME COMMAND…` under a heading and returns the status of COMMAND; 77 = nothing was tried.
try_step() {
    local name="$1" status=0 began=$SECONDS
    shift
    heading "$name: $*"
    set -m
    "$@" </dev/null &
    child=$!
    set +m
    wait "$child" || status=$?
    end_child
    durations+=("$((SECONDS - began)) s $name")
    return "$status"
}

# step NAME COMMAND…: runs a command under a heading; ends the script when it fails. With MAY_SKIP, exit
# status 77 means that the step could not run here.
step() {
    local name="$1" status=0
    if [[ " $SKIP " == *" $name "* ]]; then
        skip "$name" "SKIP names it"
        return
    fi
    try_step "$@" || status=$?
    if ((status == 77)) && [[ -n "${MAY_SKIP:-}" ]]; then
        skip "$name" "see above"
    elif ((status != 0)); then
        failed "$name" "$status"
    fi
}

# failed NAME STATUS: ends .ci/run at once. .ci/full replaces it, to go on with the next step.
failed() {
    printf '\n=== FAILED: %s (status %d, after %d s)\n' "$1" "$2" "$SECONDS"
    exit 1
}

# install_tool TOOL: installs a program from the crate index unless it is there; false if that is impossible.
install_tool() {
    command -v "$1" >/dev/null && return
    heading "installing $1"
    # An optimised build of the tool takes longer than it saves.
    env -u CARGO_TARGET_DIR cargo install --locked --debug "$1"
}

# Prints the time of each step, longest first, and what was not run.
print_summary() {
    heading "done"
    printf '%s\n' "${durations[@]}" | sort -rn | head -12
    if ((${#skipped[@]} > 0)); then
        printf 'NOT RUN: %s\n' "${skipped[*]}"
    fi
}
