#!/usr/bin/env python3
"""What check_equal.py does not ask of two real vLLM engines behind the gateway: the other generating APIs, several
prompts, hostile bodies, refusals, and that nothing stays pinned on the prefiller when clients leave.

usage: more.py GATEWAY PREFILL DECODE REFERENCE   (base URLs); exit status 1 when anything is wrong
"""
import http.client
import json
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

GATEWAY, PREFILL, DECODE, REF = sys.argv[1:5]
PARA = "The import statement combines two operations; it searches for the named module, then it binds the results. "
wrong = []


def post(base, path, body, headers=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


def metric(base, name, label=""):
    total = 0.0
    for line in urllib.request.urlopen(base + "/metrics", timeout=10).read().decode().splitlines():
        if line.startswith(name) and label in line:
            total += float(line.rsplit(" ", 1)[1])
    return total


def check(name, ok, shown=""):
    print(("ok    " if ok else "WRONG ") + name + (f"  {shown}" if shown else ""))
    if not ok:
        wrong.append(name)


def external():
    return metric(DECODE, "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"')


def computed():
    return metric(DECODE, "vllm:prompt_tokens_by_source_total", 'source="local_compute"')


def same(name, path, body, text_of, by_transfer=True):
    """The gateway's text equals the plain engine's, and the decoder computed none of the prompt."""
    body = {"model": "tiny", "temperature": 0, **body}
    before = external(), computed()
    code, got = post(GATEWAY, path, body)
    moved = external() - before[0], computed() - before[1]
    _, want = post(REF, path, body)
    equal = code == 200 and text_of(got) == text_of(want)
    check(name, equal and (moved[0] > 0 or not by_transfer), f"transferred {moved[0]:.0f}, computed {moved[1]:.0f} tokens")
    if not equal:
        print("   got ", code, got[:400], "\n   want", want[:400])


def sse_text(path_to_text):
    def read(raw):
        out = []
        for line in raw.decode().splitlines():
            if line.startswith("data: {"):
                out.append(path_to_text(json.loads(line[6:])) or "")
        return "".join(out)
    return read


def fresh(n):
    return f"{n} {time.time_ns()} " + PARA * 3


def main():
    u = fresh("a")
    same("responses", "/v1/responses", {"input": fresh("r"), "max_output_tokens": 8},
         lambda raw: json.loads(raw)["output"][0]["content"][0]["text"])
    same("responses, streamed", "/v1/responses", {"input": fresh("rs"), "max_output_tokens": 8, "stream": True},
         sse_text(lambda e: e.get("delta") if e.get("type") == "response.output_text.delta" else ""))
    same("messages", "/v1/messages", {"messages": [{"role": "user", "content": fresh("m")}], "max_tokens": 8},
         lambda raw: json.loads(raw)["content"][0]["text"])
    same("messages, streamed", "/v1/messages",
         {"messages": [{"role": "user", "content": fresh("ms")}], "max_tokens": 8, "stream": True},
         sse_text(lambda e: (e.get("delta") or {}).get("text")))
    texts = lambda raw: [c["text"] for c in json.loads(raw)["choices"]]
    same("invocations", "/invocations", {"prompt": fresh("i"), "max_tokens": 8}, texts)
    same("one prompt in a list", "/v1/completions", {"prompt": [fresh("l")], "max_tokens": 8}, texts)
    same("three prompts of different length", "/v1/completions",
         {"prompt": [fresh("l1"), "short", fresh("l3") * 3], "max_tokens": 8}, texts, by_transfer=False)
    same("token ids", "/v1/completions", {"prompt": list(range(100, 400)), "max_tokens": 8}, texts)
    same("n=2", "/v1/completions", {"prompt": fresh("n"), "n": 2, "max_tokens": 8, "temperature": 0.7, "seed": 3},
         texts, by_transfer=False)
    same("beam search", "/v1/completions",
         {"prompt": fresh("b"), "n": 2, "use_beam_search": True, "max_tokens": 4}, texts, by_transfer=False)

    # A client's own transfer parameters: with NIXL they would kill the decoder.
    hostile = {"model": "tiny", "prompt": u, "max_tokens": 4, "temperature": 0}
    code, _ = post(GATEWAY, "/v1/completions", {**hostile, "kv_transfer_params": {"do_remote_prefill": True}})
    check("kv_transfer_params of a client are dropped", code == 200)
    raw = json.dumps(hostile)[:-1].encode() + b', "kv_\\u0074ransfer_params": {"do_remote_prefill": true}}'
    check("so are escaped ones", post(GATEWAY, "/v1/completions", raw)[0] == 200)
    code, said = post(GATEWAY, "/v1/completions", {**hostile, "vllm_xargs": {"kv_transfer_params": "x"}})
    check("hidden ones are refused", code == 400 and b"vllm_xargs.kv_transfer_params" in said)
    check("the decoder is alive", post(DECODE, "/tokenize", {"model": "tiny", "prompt": "x"})[0] == 200)

    # Refusals come through as the engine wrote them.
    for name, path, body in [
        ("unknown model", "/v1/completions", {**hostile, "model": "nope"}),
        ("bad temperature", "/v1/completions", {**hostile, "temperature": -1}),
        ("context too long", "/v1/completions", {**hostile, "prompt": list(range(3, 2047)) * 2}),
    ]:
        check(f"refused as the engine does: {name}", post(GATEWAY, path, body) == post(REF, path, body))
    # vLLM counts the members of the body that it got in this message, and the prefill leg has more of them.
    code, said = post(GATEWAY, "/v1/chat/completions", {"model": "tiny"})
    check("refused by the engine: no messages", code == 400 and b"'loc': 'body.messages'" in said)

    leave()
    sys.exit(1 if wrong else 0)


def leave():
    """Clients that leave at every stage; afterwards the prefiller and the decoder hold nothing."""
    place = urllib.parse.urlsplit(GATEWAY)
    for delay_ms in (0, 1, 2, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 60, 80, 120):
        body = json.dumps({"model": "tiny", "prompt": fresh(f"gone{delay_ms}") * 2, "max_tokens": 400,
                           "temperature": 0, "stream": True, "ignore_eos": True}).encode()
        client = socket.create_connection((place.hostname, place.port))
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\ncontent-length: "
                       + str(len(body)).encode() + b"\r\n\r\n" + body)
        time.sleep(delay_ms / 1000)
        client.close()
    time.sleep(2.5)
    held = metric(PREFILL, "vllm:kv_cache_usage_perc"), metric(DECODE, "vllm:kv_cache_usage_perc")
    running = metric(DECODE, "vllm:num_requests_running"), metric(PREFILL, "vllm:num_requests_running")
    outcomes = {o: metric(GATEWAY, "pd_proxy_handoffs_total", f'outcome="{o}"') for o in ("used", "released", "expired")}
    check("nothing runs, and nothing is pinned, 2.5 s after 16 clients left", held == (0.0, 0.0) and running == (0.0, 0.0),
          f"KV in use P, D {held}, running {running}, hand-offs {outcomes}")


main()
