#!/usr/bin/env python3
"""What it costs two real vLLM engines to be sent a prompt's tokens in place of its text (`prompt.send_ids`).

send_ids.sh starts the engines and runs this. Three gateways stand before one pair, which differ in how they send prompts; each prompt is computed once,
and then sent through each in turn: so its prefix is cached, and what is left is to read, to tokenise, to look up and to hand over. Printed are medians
of the time from the request to the first token, and of the CPU time of either engine's API server, all its threads.
"""
import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pydoc_data import topics

TEXT = "\n".join(topics.topics[name] for name in sorted(topics.topics))
# Ways to send a prompt, by the gateway's settings: who tokenises, and `prompt.send_ids`.
SENT_AS = {"text": ("local", False), "tokens": ("local", True), "tokens that the prefiller told": ("off", True)}
# Members of events with a token.
TOKENS = (b'"content":"', b'"reasoning":"', b'"text":"')
# So much of it tells how many characters a token has.
SAMPLE = 1 << 16
# The largest that is computed for the first time takes so long on a processor.
PATIENCE = 3600
# Threads of an API server that go on when the answer is here.
SETTLE_S = 0.1


class Gateway:
    """One gateway before the pair."""

    def __init__(self, args, port, sent_as):
        tokens, send_ids = SENT_AS[sent_as]
        self.file = tempfile.TemporaryFile("w+", encoding="utf-8")
        command = [args.gateway, "--host", "127.0.0.1", "--port", str(port), "--model-path", args.model_path]
        command += ["--prefill", args.prefill, "--decode", args.decode, "--set", f"prompt.tokens={tokens}", "--set", "route.bypass_tokens=0"]
        command += ["--set", f"prompt.send_ids={str(send_ids).lower()}", "--set", "timeout.prefill_ms=3600000", "--set", "timeout.first_byte_ms=3600000"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PD_PROXY")}
        self.process = subprocess.Popen(command, stdout=self.file, stderr=self.file, env=environment)
        self.port = port
        if tokens == "local":
            self.wait("our tokens are the engine's", 1)
        if send_ids:
            self.wait("takes the token ids of chats", 2)

    def wait(self, text, times):
        """Waits until the log has that line so often."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            self.file.seek(0)
            log = self.file.read()
            if len(re.findall(re.escape(text), log)) >= times:
                return
            assert self.process.poll() is None, log
            time.sleep(0.2)
        raise SystemExit(f"never said {text!r}:\n{log}")

    def first_token_ms(self, path, body):
        """Time until the first event with a choice; the whole answer is read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        began = time.perf_counter()
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        took, text = None, b""
        while line := answer.readline():
            text += line
            has_token = line.startswith(b"data: {") and any(key in line for key in TOKENS) and b'"role":"assistant"' not in line
            took = took or (has_token and (time.perf_counter() - began) * 1e3)
        connection.close()
        assert answer.status == 200 and took and b"[DONE]" in text, text[-500:]
        usage = json.loads(text.split(b"data: ")[-2])["usage"]
        return took, usage["prompt_tokens"]


def cpu_ms(pid):
    """CPU time of a process, all its threads."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
        except OSError:
            pass
    return total / 1e6


def count(engine, text):
    """Tokens of a text, as an engine counts them."""
    body = json.dumps({"model": "tiny", "prompt": text}).encode()
    request = urllib.request.Request(f"http://{engine}/tokenize", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)["count"]


def text_of(engine, tokens):
    """A text of about so many tokens."""
    length = int(tokens * SAMPLE / count(engine, TEXT[:SAMPLE]))
    return (TEXT * (length // len(TEXT) + 1))[:length]


def request(kind, text):
    """Path and body of a streamed request."""
    common = {"model": "tiny", "temperature": 0, "max_tokens": 2, "min_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
    if kind == "chat":
        return "/v1/chat/completions", json.dumps({**common, "messages": [{"role": "user", "content": text}]}).encode()
    return "/v1/completions", json.dumps({**common, "prompt": text}).encode()


def measure(args, gateways, kind, tokens):
    """One line for each gateway."""
    path, body = request(kind, text_of(args.prefill, tokens))
    began = time.monotonic()
    _, length = gateways["text"].first_token_ms(path, body)
    print(f"# {kind} of {length} tokens: computed in {time.monotonic() - began:.1f} s", flush=True)
    found = {sent_as: [] for sent_as in gateways}
    for _ in range(args.repeats):
        for sent_as, gateway in gateways.items():
            before = [cpu_ms(pid) for pid in args.pids]
            took, _ = gateway.first_token_ms(path, body)
            time.sleep(SETTLE_S)
            after = [cpu_ms(pid) for pid in args.pids]
            found[sent_as].append((took, *(b - a for a, b in zip(before, after))))
    for sent_as, all_of_it in found.items():
        medians = [statistics.median(column) for column in zip(*all_of_it)]
        least = [min(column) for column in zip(*all_of_it)]
        print(f"| {kind} | {length} | {sent_as} | " + " | ".join(f"{m:.1f} ({l:.1f})" for m, l in zip(medians, least)) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--prefill", required=True)
    parser.add_argument("--decode", required=True)
    parser.add_argument("--pids", type=int, nargs=2, required=True, help="of the prefiller's and the decoder's API server")
    parser.add_argument("--port", type=int, default=9000, help="the first of three ports for gateways")
    parser.add_argument("--tokens", default="1000,8000,60000")
    parser.add_argument("--kinds", default="chat,completion")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    gateways = {}
    try:
        for port, sent_as in enumerate(SENT_AS, args.port):
            gateways[sent_as] = Gateway(args, port, sent_as)
        print("| API | tokens | sent as | first token, ms (least) | API server of the prefiller, CPU ms | of the decoder |", flush=True)
        print("|---|--:|---|--:|--:|--:|", flush=True)
        for kind in args.kinds.split(","):
            for tokens in map(int, args.tokens.split(",")):
                measure(args, gateways, kind, tokens)
    finally:
        for gateway in gateways.values():
            gateway.process.terminate()
            gateway.process.wait()


if __name__ == "__main__":
    main()
