"""Compares golden chats with what a server of `vllm launch render` answers to the same requests.

Run with a Python that has vLLM: `python ask_render.py GOLDEN_JSON [FAMILY …]`. For each family a model's directory is written, and the server
is started on it, without a GPU and without weights; the golden files themselves are made by make_chat.py. Texts with the golden date in them
are left out, since the server's clock goes on.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).parent
PORT = int(os.environ.get("PORT", "8765"))
# The smallest that is a model to vLLM.
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_hidden_layers": 1, "head_dim": 32, "max_position_embeddings": 32768, "vocab_size": 4096,
    "tie_word_embeddings": False, "torch_dtype": "float32", "hidden_act": "silu", "rms_norm_eps": 1e-6, "eos_token_id": 2,
}
# Without them chats with tools are refused; they leave the prompt as it is.
PARSER = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
# As templates print the golden date.
DATES = ("2026-03-07", "07 Mar 2026", "7 Mar 2026", "March 07, 2026", "2026")


def model_directory(root, family, special):
    shutil.copy(HERE / "tokenizer.json", root / "tokenizer.json")
    shutil.copy(HERE / "templates" / f"{family}.jinja", root / "chat_template.jinja")
    (root / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32768, "clean_up_tokenization_spaces": False, **special}
    (root / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def post(path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait(server):
    until = time.monotonic() + 240
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2)
            return
        except OSError:
            time.sleep(0.5)
    sys.exit("the server does not come up")


def compare(golden, results, name):
    """Number of requests that are the same, and of those that are refused on both sides; prints each that differs."""
    same = refused = dated = differ = 0
    for request, expect in results.items():
        status, answer = post("/v1/chat/completions/render", {"model": "m", **golden["requests"][request]})
        if "error" in expect and status in (400, 422):
            refused += 1
        elif status == 200 and answer["token_ids"] == expect.get("ids"):
            same += 1
        elif any(date in expect.get("text", "") for date in DATES):
            dated += 1
        else:
            differ += 1
            print(f"{name}/{request}: {status} {str(answer)[:200]}", file=sys.stderr)
    print(f"{name}: {same} same, {refused} refused, {dated} with a date, {differ} differ", flush=True)
    return differ


def main():
    golden = json.loads(pathlib.Path(sys.argv[1]).read_text())
    differ = 0
    for family in sys.argv[2:] or golden["families"]:
        entry = golden["families"][family]
        for key in [key for key in ("results", "mapped") if key in entry]:
            flags = ["--reasoning-effort-map", json.dumps(golden["effort_map"])] if key == "mapped" else []
            with tempfile.TemporaryDirectory() as root:
                model_directory(pathlib.Path(root), family, entry["config"])
                command = ["vllm", "launch", "render", root, "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(PORT), *PARSER, *flags]
                server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                try:
                    wait(server)
                    differ += compare(golden, entry[key], f"{family} {key}")
                finally:
                    server.terminate()
                    server.wait(30)
    sys.exit(1 if differ else 0)


main()
