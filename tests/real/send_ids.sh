#!/usr/bin/env bash
# Two real engines that are sent prompts as tokens (`prompt.send_ids`): check_equal.py must find all 52 answers equal to those of a plain engine,
# over both APIs, streamed and not, tools and reasoning parsers on; sampling.py must, for members such as `logit_bias`; then send_ids.py prints what it saves them.
#
# Needs what run.sh needs, and 6 GiB of memory; a quarter of an hour, most of it to compute the longest prompt for the first time. PD_PROXY names a program
# that is built, TOKENS the lengths. Exit status 0: all answers are equal.
set -euo pipefail
cd "$(dirname "$0")/../.."
rig=$PWD/tests/real/rigs/vllm
export MAX_LEN=${MAX_LEN:-131072} KV_CACHE_BLOCKS=${KV_CACHE_BLOCKS:-9000} HASHSEED=0
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
export MODEL_DIR=$RIG/tiny-long
# Parsers of reasoning and tools want their marks to be tokens.
[ -d "$MODEL_DIR" ] || "$VENV/bin/python" "$rig/make_model.py" --out "$MODEL_DIR" --max-len "$MAX_LEN" --special "<think>,</think>,<tool_call>,</tool_call>"
program=$(gateway_program)
port=${PORT:-9000}
gateway=
trap '[ -z "$gateway" ] || kill "$gateway"; "$rig/stop.sh" prefill decode ref >/dev/null' EXIT
export EXTRA="--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3"
"$rig/start_pair.sh" nixl
"$rig/start_pair.sh" ref

log=$LOGS/gateway.log
"$program" --host 127.0.0.1 --port "$port" --prefill "127.0.0.1:$P_PORT" --decode "127.0.0.1:$D_PORT" --model-path "$MODEL_DIR" \
  --set prompt.tokens=local --set prompt.send_ids=true >"$log" 2>&1 &
gateway=$!
until [ "$(grep -c 'takes the token ids of chats' "$log")" = 2 ]; do
  kill -0 "$gateway"
  sleep 0.5
done
for parallel in 1 4; do
  "$VENV/bin/python" "$rig/check_equal.py" --url "http://127.0.0.1:$port" --ref "http://127.0.0.1:$REF_PORT" --decode "http://127.0.0.1:$D_PORT" \
    --token-ids --parallel "$parallel"
done
"$VENV/bin/python" tests/real/sampling.py "http://127.0.0.1:$REF_PORT" "http://127.0.0.1:$port"
kill "$gateway"
wait "$gateway" || true
gateway=
"$VENV/bin/python" tests/real/send_ids.py --gateway "$program" --model-path "$MODEL_DIR" --prefill "127.0.0.1:$P_PORT" --decode "127.0.0.1:$D_PORT" \
  --pids "$(cat "$RUN/prefill.pid")" "$(cat "$RUN/decode.pid")" --port "$port" --tokens "${TOKENS:-1000,8000,60000}"
