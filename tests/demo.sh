#!/usr/bin/env bash
# The README's first promise: one command starts the demo, the lines that it prints work, the second finds the first one's
# blocks in the pool, Ctrl-C stops it.
# Needs port 8000. Run it from anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp "${TMPDIR:-/tmp}/pd-proxy-demo.XXXXXX")
answer=$log.answer
demo=
done_lines=0
cleanup() {
    if [[ -n $demo ]]; then kill "$demo" 2>/dev/null || true; fi
    rm -f "$log" "$answer"
}
trap cleanup EXIT
fail() {
    echo "demo: $1" >&2
    echo "--- the demo said:" >&2
    cat "$log" >&2
    exit 1
}

# Built first, so that the wait below is for the demo alone.
cargo build --release --quiet
# In a script, background jobs ignore SIGINT; job control gives them the usual behaviour.
set -m
cargo run --release -- demo >"$log" 2>&1 &
demo=$!
set +m

lines=()
for _ in $(seq 300); do
    mapfile -t lines < <(grep '^curl ' "$log" || true)
    ((${#lines[@]} >= 2)) && break
    kill -0 "$demo" 2>/dev/null || fail "it ended before it printed lines to try"
    sleep 0.1
done
((${#lines[@]} >= 2)) || fail "it did not print two lines to try within 30 s"

# Runs a printed line; the log line of its request then has what the pool had of the prompt.
pooled=()
for line in "${lines[@]}"; do
    grep -q 'http://127.0.0.1:8000' <<<"$line" || fail "the line does not name port 8000: $line"
    bash -c "$line" >"$answer" 2>/dev/null || fail "the printed line failed: $line"
    words=$(grep -o '"content":"[^"]\+"' "$answer" | wc -l)
    ((words > 5)) || fail "the answer has $words pieces of text: $(cat "$answer")"
    [[ $(grep -v '^$' "$answer" | tail -n 1) == 'data: [DONE]' ]] || fail "the answer does not end with data: [DONE]"
    for _ in $(seq 50); do
        mapfile -t pooled < <(sed -n 's/.* pooled_tokens=\([0-9]*\).*/\1/p' "$log")
        ((${#pooled[@]} >= 1 + done_lines)) && break
        sleep 0.1
    done
    done_lines=$((done_lines + 1))
done
((${#pooled[@]} == ${#lines[@]} && pooled[0] == 0 && pooled[1] > 0)) ||
    fail "the pool had ${pooled[*]-nothing} tokens of the prompts: expected none of the first, some of the second"

# Ctrl-C goes to the whole foreground group.
kill -INT -- "-$demo"
code=0
wait "$demo" || code=$?
demo=
((code == 0)) || fail "it ended with code $code after SIGINT"
echo "demo: ok, $words pieces of text, [DONE], ${pooled[1]} tokens of the second turn in the pool, exit code 0"
