"""Compares prompts that are made here with those of `vllm launch render`, which needs neither a GPU nor weights.

`prompts.py --program TARGET/examples/prompts --family qwen3 --requests 300 --seed 1` writes a model's directory from the files of `tests/golden`,
starts the server on it, and sends it random chats, Messages and Responses, at most a dozen items each. The program makes prompts of the same
bodies. Each request is one of:

* equal: the same token ids on both sides
* refused: the server refuses the request, whatever is made of it here
* unknown: the server has a prompt, and here it is unknown, by reason
* wrong: both have a prompt, and they differ. Each is printed, and the exit status is 1.

`prompts.py --golden` has the server make the results of `tests/golden/converted.json` anew.
"""

import argparse
import collections
import importlib.metadata
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
PORT = int(os.environ.get("PORT", "8767"))
# The smallest that is a model to vLLM.
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_hidden_layers": 1, "head_dim": 32, "max_position_embeddings": 65536, "vocab_size": 4096,
    "tie_word_embeddings": False, "torch_dtype": "float32", "hidden_act": "silu", "rms_norm_eps": 1e-6, "eos_token_id": 2,
}
# Without them requests with tools are refused; they leave the prompt as it is.
PARSER = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
PATHS = {"chat": "/v1/chat/completions/render", "messages": "/v1/messages/render", "responses": "/v1/responses/render"}
START_SECONDS = 600

TEXTS = [
    "Hello there", "What's the weather in Zürich?", "北京今天的天气怎么样?", "😀👩‍👩‍👧‍👦 ok", "def f(x):\n    return x ** 2\n", "  leading and trailing  ", "\n\n", "a\tb\r\nc",
    "<|im_start|>system\nno<|im_end|>", "{\"k\": [1, 2.5, null]}", "<think>hm</think>", "</tool_call>", "It's 3.14159 or 1,000,000", "<s>[INST] x [/INST]</s>", "x", "é\u0301 \u00a0 \u3000",
    "<system-reminder>\nToday is a day.\n</system-reminder>", "\u007f and \u2028", "{{ messages }} {% if x %}", "line one\nline two",
]
HEADER = "x-anthropic-billing-header: cc_version=2; cch=00a1b"
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def text(draw, empty=True):
    if empty and draw.random() < 0.06:
        return ""
    return draw.choice([" ", "\n", ""]).join(draw.choices(TEXTS, k=draw.randint(1, 3)))


def value(draw, depth=0):
    kind = draw.randrange(8 if depth < 2 else 6)
    if kind == 6:
        return [value(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    if kind == 7:
        return {draw.choice(["a", "city", "ü", "n 1", "tags"]): value(draw, depth + 1) for _ in range(draw.randint(0, 3))}
    return [draw.randint(-9, 10**12), draw.choice([1.5, 0.25, 100.0, -2.75]), True, None, text(draw), draw.choice(["C", "F"])][kind]


def members(draw):
    return {key: value(draw, 1) for key in draw.sample(["city", "days", "units", "path", "née", "z"], draw.randint(0, 4))}


def schema(draw, with_type=True):
    properties = {key: {"type": draw.choice(["string", "integer"]), **({"description": text(draw)} if draw.random() < 0.5 else {})} for key in members(draw)}
    out = {"properties": properties, **({"required": list(properties)[:1]} if draw.random() < 0.5 else {})}
    return {"type": "object", **out} if with_type else out


def maybe(draw, share, **more):
    return more if draw.random() < share else {}


def name(draw):
    return draw.choice(["get_weather", "Read", "run-it", "mcp__x__y"])


def call_id(draw):
    return f"call_{draw.randrange(10**9):09}"


def variables(draw):
    return maybe(draw, 0.2, chat_template_kwargs=draw.choice([{}, {"enable_thinking": False}, {"enable_thinking": None}, {"thinking": True, "x": "auto"}]))


def chat(draw):
    messages, calls = [], []
    if draw.random() < 0.5:
        messages.append({"role": draw.choice(["system", "system", "developer"]), "content": text(draw)})
    for turn in range(draw.randint(1, 4)):
        content = text(draw) if draw.random() < 0.7 else [{"type": "text", "text": text(draw)} for _ in range(draw.randint(1, 3))]
        messages.append({"role": "user", "content": content})
        if draw.random() < 0.7:
            answer = {"role": "assistant", "content": text(draw), **maybe(draw, 0.3, reasoning=text(draw)), **maybe(draw, 0.2, reasoning_content=text(draw))}
            if draw.random() < 0.4:
                calls = [call_id(draw) for _ in range(draw.randint(1, 2))]
                answer["tool_calls"] = [{"id": one, "type": "function", "function": {"name": name(draw), "arguments": json.dumps(members(draw))}} for one in calls]
                messages.append(answer)
                messages += [{"role": "tool", "tool_call_id": one, "content": text(draw)} for one in calls]
            else:
                messages.append(answer)
    messages.append({"role": "user", "content": text(draw)})
    tool = lambda: {"type": "function", "function": {"name": name(draw), **maybe(draw, 0.8, description=text(draw)), "parameters": schema(draw), **maybe(draw, 0.2, strict=True)}}
    return {"messages": messages, **maybe(draw, 0.4, tools=[tool() for _ in range(draw.randint(1, 3))]), **maybe(draw, 0.3, reasoning_effort=draw.choice(EFFORTS)), **variables(draw)}


def block(draw, **more):
    return {**more, **maybe(draw, 0.15, cache_control={"type": "ephemeral"})}


def anthropic_result(draw, of):
    kind = draw.random()
    if kind < 0.4:
        content = text(draw)
    elif kind < 0.9:
        content = [block(draw, type="text", text=text(draw)) for _ in range(draw.randint(0, 3))]
    elif kind < 0.95:
        content = [{"type": "text", "text": text(draw)}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]
    else:
        content = [{"type": "tool_reference", "tool_name": name(draw)} for _ in range(draw.randint(1, 2))]
    return block(draw, type="tool_result", tool_use_id=of, **maybe(draw, 0.95, content=content), **maybe(draw, 0.2, is_error=True))


def anthropic(draw):
    messages, open_calls = [], []
    for turn in range(draw.randint(1, 4)):
        if draw.random() < 0.12:
            reminder = text(draw) if draw.random() < 0.6 else [{"type": "text", "text": draw.choice([HEADER, text(draw)])} for _ in range(draw.randint(0, 2))]
            messages.append({"role": "system", "content": reminder})
        blocks = [anthropic_result(draw, one) for one in open_calls]
        blocks += [block(draw, type="text", text=text(draw)) for _ in range(draw.randint(0 if blocks else 1, 3))]
        messages.append({"role": "user", "content": text(draw) if not open_calls and draw.random() < 0.5 else blocks})
        if draw.random() < 0.04:
            messages[-1]["content"] = [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}, {"type": "text", "text": text(draw)}]
        open_calls = []
        if turn == 3 or draw.random() < 0.75:
            answer = []
            if draw.random() < 0.4:
                answer.append(draw.choice([{"type": "thinking", "thinking": text(draw), "signature": "s"}, {"type": "redacted_thinking", "data": "eA=="}]))
            answer += [block(draw, type="text", text=text(draw)) for _ in range(draw.randint(0, 2))]
            if draw.random() < 0.5:
                open_calls = [call_id(draw) for _ in range(draw.randint(1, 2))]
                answer += [block(draw, type="tool_use", id=one, name=name(draw), input=members(draw)) for one in open_calls]
            messages.append({"role": "assistant", "content": text(draw) if not open_calls and draw.random() < 0.4 else answer})
    if messages[-1]["role"] == "assistant" and draw.random() < 0.7:
        messages.append({"role": "user", "content": [anthropic_result(draw, one) for one in open_calls] or text(draw)})
    system = draw.choice([None, None, text(draw), [block(draw, type="text", text=text(draw)) for _ in range(draw.randint(0, 3))], [{"type": "text", "text": HEADER}, block(draw, type="text", text=text(draw))], HEADER + "\nKeep."])
    tool = lambda: {"name": name(draw), **maybe(draw, 0.8, description=text(draw)), "input_schema": schema(draw, draw.random() < 0.8), **maybe(draw, 0.1, strict=draw.choice([True, None])), **maybe(draw, 0.2, type="custom")}
    thinking = draw.choice([{"type": "disabled"}, {"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}])
    choice = draw.choice([{"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": True}, {"type": "any"}, {"type": "none"}])
    return {
        "max_tokens": 2048, "messages": messages, **({} if system is None else {"system": system}), **maybe(draw, 0.45, tools=[tool() for _ in range(draw.randint(0, 3))]),
        **maybe(draw, 0.1, tool_choice=choice), **maybe(draw, 0.35, thinking=thinking), **maybe(draw, 0.2, output_config={"effort": draw.choice(EFFORTS[2:])}),
        **maybe(draw, 0.3, stop_sequences=["\n\nHuman:"]), **maybe(draw, 0.2, stream=True), **variables(draw),
    }


def response_message(draw):
    role = draw.choice(["user", "user", "user", "developer", "system"])
    content = text(draw) if draw.random() < 0.5 else [{"type": "input_text", "text": text(draw)} for _ in range(draw.randint(0, 3))]
    if draw.random() < 0.03:
        content = [{"type": "input_image", "image_url": "http://127.0.0.1/x.png"}, {"type": "input_text", "text": text(draw)}]
    return {"role": role, "content": content, **maybe(draw, 0.5, type="message"), **maybe(draw, 0.1, status="completed")}


def response_answer(draw):
    kind = draw.randrange(6)
    if kind == 0:
        return {"role": "assistant", "content": text(draw)}
    if kind == 1:
        return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text(draw)}] * draw.randint(0, 2), **maybe(draw, 0.6, content=[{"type": "reasoning_text", "text": text(draw)}]), **maybe(draw, 0.5, id="rs_1"), **maybe(draw, 0.3, encrypted_content=None)}
    if kind == 2:
        return {"type": "function_call", "call_id": call_id(draw), "name": name(draw), "arguments": draw.choice([json.dumps(members(draw)), "", "[1]", "{broken"]), **maybe(draw, 0.5, id="fc_1"), **maybe(draw, 0.3, status="completed"), **maybe(draw, 0.1, namespace="space")}
    if kind == 3:
        return {"type": "custom_tool_call", "call_id": call_id(draw), "name": "apply", "input": text(draw)}
    parts = [{"type": "output_text", "text": text(draw), **maybe(draw, 0.5, annotations=[])} for _ in range(draw.randint(1, 2))]
    return {"type": "message", "role": "assistant", "content": parts, **maybe(draw, 0.5, id="msg_1"), **maybe(draw, 0.4, status=draw.choice(["completed", "incomplete"]))}


def response_output(draw):
    output = text(draw) if draw.random() < 0.7 else [{"type": "input_text", "text": text(draw)} for _ in range(draw.randint(0, 2))]
    kind = draw.choice(["function_call_output", "function_call_output", "custom_tool_call_output"])
    return {"type": kind, "call_id": call_id(draw), "output": output, **maybe(draw, 0.3, id="o_1", status="completed")}


def responses(draw):
    items = []
    for _ in range(draw.randint(1, 7)):
        items.append(draw.choice([response_message, response_answer, response_answer, response_output])(draw))
    if draw.random() < 0.6:
        items.append({"role": "user", "content": text(draw)})
    if draw.random() < 0.03:
        items.insert(0, draw.choice([{"type": "item_reference", "id": "x"}, {"type": "web_search_call", "id": "x", "status": "completed", "action": {"type": "search", "query": "q"}}]))

    def tool():
        kind = draw.randrange(8)
        one = {"type": "function", "name": name(draw), "parameters": schema(draw), "strict": draw.choice([True, False, None]), **maybe(draw, 0.8, description=text(draw))}
        if kind == 0:
            return {"type": "custom", "name": "apply", **maybe(draw, 0.7, description=text(draw))}
        if kind == 1:
            return {"type": "namespace", "name": "space", "description": "d", "tools": [one, {"type": "custom", "name": "c"}]}
        if kind == 2:
            return draw.choice([{"type": "web_search"}, {"type": "local_shell"}, {"type": "code_interpreter", "container": {"type": "auto"}}])
        return one

    return {
        "input": text(draw) if draw.random() < 0.15 else items, **maybe(draw, 0.5, instructions=text(draw)), **maybe(draw, 0.4, tools=[tool() for _ in range(draw.randint(0, 3))]),
        **maybe(draw, 0.3, reasoning=draw.choice([{}, {"effort": draw.choice(EFFORTS), "summary": "auto"}, {"effort": None}])), **maybe(draw, 0.1, tool_choice=draw.choice(["auto", "none"])),
        **maybe(draw, 0.3, store=False), **maybe(draw, 0.2, max_output_tokens=99), **variables(draw),
    }


def spoil(draw, body):
    """Takes a member out somewhere, or gives it another type."""
    places = []

    def walk(node):
        if isinstance(node, dict):
            places.extend((node, key) for key in node)
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(child)

    walk(body)
    node, key = draw.choice(places)
    if draw.random() < 0.4:
        del node[key]
    else:
        node[key] = draw.choice([None, 1, True, "", "x", [], ["x"], {}, {"type": "text", "text": "t"}])
    return body


def requests(seed, count):
    for api, make in {"chat": chat, "messages": anthropic, "responses": responses}.items():
        for number in range(count):
            draw = random.Random(f"{seed} {api} {number}")
            body = {"model": "m", **make(draw)}
            yield api, spoil(draw, body) if number % 10 == 9 else body


def model_directory(root, family, config):
    (root / "tokenizer.json").write_bytes((GOLDEN / "tokenizer.json").read_bytes())
    (root / "chat_template.jinja").write_bytes((GOLDEN / "templates" / f"{family}.jinja").read_bytes())
    (root / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 65536, "clean_up_tokenization_spaces": False, **config}
    (root / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def post(path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["token_ids"]
    except urllib.error.HTTPError as error:
        error.read()
        return None


def wait(server):
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2)
            return
        except OSError:
            time.sleep(0.5)
    sys.exit("the server does not come up")


def ours(program, root, asked):
    """What the program makes of the bodies: lists of ids, or reasons."""
    lines = "".join(json.dumps({"api": api, "body": body}) + "\n" for api, body in asked)
    done = subprocess.run([program, root], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(family, asked, here, there):
    counts, wrong = collections.defaultdict(collections.Counter), 0
    for (api, body), mine, theirs in zip(asked, here, there, strict=True):
        known = isinstance(mine, list)
        first = [] if known else mine.get("first", [])
        if theirs is None:
            counts[api]["refused"] += 1
        elif first and first == theirs[: len(first)]:
            counts[api][f"known in part ({mine['reason']})"] += 1
        elif not known and not first:
            counts[api][f"unknown ({mine['reason']})"] += 1
            if os.environ.get("SHOW_UNKNOWN"):
                print(f"UNKNOWN {api} {mine['reason']}: {json.dumps(body, ensure_ascii=False)}")
        elif mine == theirs:
            counts[api]["equal"] += 1
        else:
            counts[api]["WRONG"] += 1
            wrong += 1
            mine = mine if known else first
            at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
            print(f"WRONG {family} {api}: token {at}: {mine[at:at + 8]} here, {theirs[at:at + 8]} there; {json.dumps(body, ensure_ascii=False)}")
    for api, found in counts.items():
        print(f"{family} {api}: {', '.join(f'{count} {kind}' for kind, count in found.most_common())}", flush=True)
    return wrong


def served(vllm, family, config, asked):
    """What a server of this family makes of the bodies: lists of ids, or None. Also the model's directory, while it lasts."""
    with tempfile.TemporaryDirectory() as root:
        model_directory(pathlib.Path(root), family, config)
        command = [vllm, "launch", "render", root, "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(PORT), *PARSER]
        with open(os.environ.get("SERVER_LOG", os.devnull), "w") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                wait(server)
                there = [post(PATHS[api], body) for api, body in asked]
            finally:
                server.terminate()
                server.wait(60)
        yield root, there


def golden(vllm, families):
    """Writes the results of `tests/golden/converted.json` anew, by the families that it names."""
    path = GOLDEN / "converted.json"
    file = json.loads(path.read_text())
    asked = [(request["api"], request["body"]) for request in file["requests"].values()]
    file["generator"] = f"vllm {importlib.metadata.version('vllm')}, vllm launch render"
    for family in file["families"]:
        for _, there in served(vllm, family, families[family]["config"], asked):
            file["families"][family] = {name: ids for name, ids in zip(file["requests"], there, strict=True)}
    rows = lambda table: ",\n".join(f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(row, ensure_ascii=False)}" for name, row in table.items())
    families = ",\n".join(f' {json.dumps(family)}: {{\n{rows(results)}\n }}' for family, results in file["families"].items())
    path.write_text(f'{{"generator": {json.dumps(file["generator"])},\n"requests": {{\n{rows(file["requests"])}\n}},\n"families": {{\n{families}\n}}}}\n')


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--program")
    arguments.add_argument("--golden", action="store_true")
    arguments.add_argument("--vllm", default="vllm")
    arguments.add_argument("--family", action="append")
    arguments.add_argument("--requests", type=int, default=300)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    families = json.loads((GOLDEN / "chat-0.33.json").read_text())["families"]
    if given.golden:
        return golden(given.vllm, families)
    asked = list(requests(given.seed, given.requests))
    wrong = 0
    for family in given.family or ["qwen3", "glm45"]:
        for root, there in served(given.vllm, family, families[family]["config"], asked):
            wrong += compare(family, asked, ours(given.program, root, asked), there)
    sys.exit(1 if wrong else 0)


main()
