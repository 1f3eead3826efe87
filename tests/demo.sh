#!/usr/bin/env bash
# The README's first promise: one command starts the demo, the line that it prints works, Ctrl-C stops it.
# Needs port 8000. Run it from anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp "${TMPDIR:-/tmp}/pd-proxy-demo.XXXXXX")
answer=$log.answer
demo=
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

line=
for _ in $(seq 300); do
    line=$(grep -m1 '^curl ' "$log" || true)
    [[ -n $line ]] && break
    kill -0 "$demo" 2>/dev/null || fail "it ended before it printed a line to try"
    sleep 0.1
done
[[ -n $line ]] || fail "it printed no line to try within 30 s"
grep -q 'http://127.0.0.1:8000' <<<"$line" || fail "the line does not name port 8000: $line"

bash -c "$line" >"$answer" 2>/dev/null || fail "the printed line failed: $line"
words=$(grep -o '"content":"[^"]\+"' "$answer" | wc -l)
((words > 5)) || fail "the answer has $words pieces of text: $(cat "$answer")"
[[ $(grep -v '^$' "$answer" | tail -n 1) == 'data: [DONE]' ]] || fail "the answer does not end with data: [DONE]"

# Ctrl-C goes to the whole foreground group.
kill -INT -- "-$demo"
code=0
wait "$demo" || code=$?
demo=
((code == 0)) || fail "it ended with code $code after SIGINT"
echo "demo: ok, $words pieces of text, [DONE], exit code 0"
