#!/usr/bin/env bash
# The keys that two real vLLM engines write into a real Mooncake store are the keys that the library computes from the
# same token ids. Needs what run.sh needs; two minutes. Exit status 0: equal, for every prompt.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
rig=$root/tests/real/rigs/vllm
. "$rig/env.sh"
[ -x "$VENV/bin/vllm" ] || "$rig/setup.sh"
cargo build --locked -p pd-proxy-core --example block_keys
trap '"$rig/stop.sh" >/dev/null' EXIT
"$rig/start_pair.sh" mooncake-store
python3 - "http://127.0.0.1:$P_PORT" http://127.0.0.1:"${MC_METRICS:-19003}" "$MODEL_DIR" "$BLOCK" <<'PY'
import json, subprocess, sys, time, urllib.request

prefill, store, model, block = sys.argv[1:5]
PARA = "The import statement combines two operations; it searches for the named module. "


def keys():
    return set(urllib.request.urlopen(store + "/get_all_keys", timeout=10).read().decode().split())


def ask(path, body):
    body = {"model": "tiny", "max_tokens": 1, "temperature": 0, "return_token_ids": True, **body}
    request = urllib.request.Request(prefill + path, json.dumps(body).encode(), {"content-type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=60))
    return answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]


wrong = 0
now = time.time_ns()
for name, path, body in [
    ("completion", "/v1/completions", {"prompt": f"{now} " + PARA * 12}),
    ("token ids", "/v1/completions", {"prompt": [(now + 7 * i) % 2000 + 3 for i in range(300)]}),
    ("chat", "/v1/chat/completions", {"messages": [{"role": "system", "content": f"{now}"}, {"role": "user", "content": PARA * 9}]}),
    ("Chinese and emoji", "/v1/completions", {"prompt": f"{now} 世界 😀 " * 20}),
]:
    before = keys()
    ids = ask(path, body)
    command = ["target/debug/examples/block_keys", model, block] + [str(i) for i in ids]
    computed = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    for _ in range(50):
        written = keys() - before
        if written >= computed:
            break
        time.sleep(0.1)
    equal = written == computed and len(computed) == len(ids) // int(block)
    wrong += not equal
    print(f"{'ok   ' if equal else 'WRONG'} {name}: {len(ids)} tokens, {len(written)} keys in the store, {len(computed)} computed")
    if not equal:
        print("  written", sorted(written)[:2], "computed", sorted(computed)[:2])
sys.exit(1 if wrong else 0)
PY
echo "all keys equal"
