"""What the official client makes of the gateway's answers. Arguments: the base URLs of the demo, and of a gateway
whose engines compute long prompts quickly. Exit code 1 if anything is wrong."""

import asyncio
import json
import sys

import openai

base = sys.argv[1]
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=60)
wrong = []


def check(name, holds, seen=""):
    print(("ok     " if holds else "WRONG  ") + name + ("" if holds else f": {str(seen)[:600]}"), flush=True)
    if not holds:
        wrong.append(name)


def guarded(work):
    """A check that raises is a wrong check, and the others still run."""
    try:
        work()
    except Exception as error:  # whatever the client makes of an answer
        check(work.__name__, False, f"{type(error).__name__}: {error}")


def chat(messages, **more):
    return client.chat.completions.create(model="sim", messages=messages, **{"max_tokens": 24, **more})


def user(text):
    return [{"role": "user", "content": text}]


def gather(stream):
    """Text by choice, finish reasons by choice, the last usage, and the chunks."""
    text, finish, usage, chunks = {}, {}, None, []
    for chunk in stream:
        chunks.append(chunk)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            piece = choice.text if hasattr(choice, "text") else choice.delta.content
            text[choice.index] = text.get(choice.index, "") + (piece or "")
            if choice.finish_reason:
                finish[choice.index] = choice.finish_reason
    return text, finish, usage, chunks


def same_chat(name, messages, **more):
    whole = chat(messages, **more)
    text, finish, _, _ = gather(chat(messages, stream=True, **more))
    expected = {c.index: c.message.content for c in whole.choices}
    check(f"{name}: words", all(expected.values()), whole)
    check(f"{name}: streamed equals whole", text == expected, (text, expected))
    check(f"{name}: finish", finish == {c.index: c.finish_reason for c in whole.choices}, finish)
    return whole


def same_completion(name, prompt, **more):
    ask = {"model": "sim", "prompt": prompt, "max_tokens": 24, **more}
    whole = client.completions.create(**ask)
    text, finish, _, _ = gather(client.completions.create(stream=True, **ask))
    expected = {c.index: c.text for c in whole.choices}
    check(f"{name}: words", all(expected.values()), whole)
    check(f"{name}: streamed equals whole", text == expected, (text, expected))
    check(f"{name}: finish", finish == {c.index: c.finish_reason for c in whole.choices}, finish)
    return whole


def texts():
    whole = same_chat("chat", user("Tell me about prefill."))
    check("chat: finish reason", whole.choices[0].finish_reason == "length", whole)
    check("chat: usage", whole.usage.completion_tokens == 24 and whole.usage.prompt_tokens > 0, whole.usage)
    same_completion("completion", "Once upon a time")
    again = same_chat("chat: again", user("Tell me about prefill."))
    check("chat: same prompt, same text", again.choices[0].message.content == whole.choices[0].message.content)
    turns = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "What is a decoder?"},
        {"role": "assistant", "content": "It generates."},
        {"role": "user", "content": "And a prefiller?"},
    ]
    several = same_chat("system and turns", turns)
    other = chat(turns[1:])
    check(
        "system and turns: the system prompt counts",
        several.choices[0].message.content != other.choices[0].message.content,
    )
    same_chat("Chinese", user("请用一句话介绍预填充与解码分离。" * 20))
    same_chat("emoji", user("👩‍🚀🚀🇩🇪 → 🎉 \u0000 \" \\ \u2028 end"))
    same_completion("Chinese completion", "从前有座山,山里有座庙🏯")
    parts = [{"role": "user", "content": [{"type": "text", "text": "In "}, {"type": "text", "text": "parts."}]}]
    same_chat("content parts", parts)
    same_chat("max_completion_tokens", user("Newer name."), max_tokens=openai.NOT_GIVEN, max_completion_tokens=9)


def choices():
    whole = same_chat("chat n=2", user("Two of them."), n=2)
    check("chat n=2: two choices", [c.index for c in whole.choices] == [0, 1], whole)
    whole = same_completion("completion n=2", "Two of them", n=2)
    check("completion n=2: two choices", [c.index for c in whole.choices] == [0, 1], whole)


def prompts():
    one = same_completion("one prompt", "First prompt")
    two = same_completion("list of prompts", ["First prompt", "The second, which is longer"])
    check("list of prompts: two choices", [c.index for c in two.choices] == [0, 1], two)
    check("list of prompts: the first is as if alone", two.choices[0].text == one.choices[0].text, two)
    ids = list(range(100, 160))
    tokens = same_completion("token ids", ids)
    check("token ids: prompt counted", tokens.usage.prompt_tokens == len(ids), tokens.usage)
    lists = same_completion("lists of token ids", [ids, [7, 8, 9]])
    check("lists of token ids: two choices", len(lists.choices) == 2, lists)
    check("lists of token ids: the first is as if alone", lists.choices[0].text == tokens.choices[0].text)


def logprobs():
    whole = chat(user("How sure?"), logprobs=True, top_logprobs=3, max_tokens=5)
    content = whole.choices[0].logprobs.content
    check("chat logprobs: one per token", len(content) == 5, content)
    check("chat logprobs: three alternatives", all(len(t.top_logprobs) == 3 for t in content), content)
    pieces = []
    for chunk in chat(user("How sure?"), logprobs=True, top_logprobs=3, max_tokens=5, stream=True):
        for choice in chunk.choices:
            pieces += choice.logprobs.content if choice.logprobs else []
    check(
        "chat logprobs: streamed equals whole",
        [(t.token, t.logprob) for t in pieces] == [(t.token, t.logprob) for t in content],
        pieces,
    )
    whole = client.completions.create(model="sim", prompt="How sure", logprobs=2, max_tokens=5)
    check("completion logprobs", len(whole.choices[0].logprobs.token_logprobs) == 5, whole)


def tools():
    tool = {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a text up.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    }
    ask = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "look_up"}}}
    call = chat(user("Look it up."), **ask).choices[0].message.tool_calls[0]
    check("tools: the named one", call.function.name == "look_up" and call.type == "function" and call.id, call)
    whole = json.loads(call.function.arguments)
    name, arguments = None, ""
    for chunk in chat(user("Look it up."), stream=True, **ask):
        for choice in chunk.choices:
            for piece in choice.delta.tool_calls or []:
                name = piece.function.name or name
                arguments += piece.function.arguments or ""
    check("tools: streamed name", name == "look_up", name)
    check("tools: streamed arguments equal whole", json.loads(arguments) == whole, arguments)


def usage():
    messages = user("Count me. " * 40)
    whole = chat(messages).usage
    _, _, streamed, chunks = gather(chat(messages, stream=True, stream_options={"include_usage": True}))
    check("include_usage: last chunk alone has it", chunks[-1].choices == [] and chunks[-1].usage is not None)
    check("include_usage: others have none", all(c.usage is None for c in chunks[:-1]))
    check(
        "include_usage: streamed equals whole",
        (streamed.prompt_tokens, streamed.completion_tokens, streamed.total_tokens)
        == (whole.prompt_tokens, whole.completion_tokens, whole.total_tokens),
        (streamed, whole),
    )
    check("include_usage: the cache is seen", streamed.prompt_tokens_details.cached_tokens > 0, streamed)
    _, _, none, _ = gather(chat(messages, stream=True))
    check("no include_usage: no usage", none is None, none)


def megabyte():
    text = "".join(f"word {n:06} " for n in range(1 << 20))[: 1 << 20]
    with openai.OpenAI(base_url=sys.argv[2], api_key="none", max_retries=0, timeout=60) as quick:
        ask = {"model": "sim", "prompt": text, "max_tokens": 8}
        whole = quick.completions.create(**ask)
        streamed, _, _, _ = gather(quick.completions.create(stream=True, **ask))
        other = quick.completions.create(**{**ask, "prompt": "x" + text[1:]})
    check("1 MB prompt: counted and answered", whole.usage.prompt_tokens > 300_000 and whole.choices[0].text, whole)
    check("1 MB prompt: streamed equals whole", streamed == {0: whole.choices[0].text}, streamed)
    check("1 MB prompt: its first letter counts", other.choices[0].text != whole.choices[0].text)


def raises(name, kind, status, work, **fields):
    try:
        work()
    except kind as error:
        body = error.body if isinstance(error.body, dict) else {}
        seen = {"message": body.get("message"), "type": body.get("type"), "param": body.get("param"), "code": body.get("code")}
        check(f"{name}: status", error.status_code == status, error.status_code)
        check(f"{name}: members", all(seen[k] == v for k, v in fields.items()), seen)
        check(f"{name}: message", bool(seen["message"]) and seen["message"] in str(error), error)
        check(f"{name}: request id", bool(error.request_id), error.response.headers)
    except Exception as error:
        check(f"{name}: {kind.__name__}", False, f"{type(error).__name__}: {error}")
    else:
        check(f"{name}: {kind.__name__}", False, "no error")


def errors():
    raises(
        "unknown model", openai.NotFoundError, 404,
        lambda: client.chat.completions.create(model="nope", messages=user("x")),
        type="NotFoundError", param="model", code=404,
    )
    raises(
        "an engine's 400", openai.BadRequestError, 400, lambda: chat(user("x"), max_tokens=-1),
        type="BadRequestError", param="max_tokens", code=400,
    )
    raises("an engine's 400, streamed", openai.BadRequestError, 400, lambda: chat([], stream=True), type="BadRequestError")
    raises(
        "our 400", openai.BadRequestError, 400,
        lambda: chat(user("x"), extra_body={"vllm_xargs": {"kv_transfer_params": {}}}),
        type="invalid_request_error", param=None, code="invalid_value",
    )


def surface():
    listed = client.models.list()
    check("models: sim is listed", [m.id for m in listed.data] == ["sim"], listed)
    vectors = client.embeddings.create(model="sim", input=["a", "b"], encoding_format="float")
    check("embeddings: two", [v.index for v in vectors.data] == [0, 1], vectors)
    raw = client.chat.completions.with_raw_response.create(
        model="sim", messages=user("x"), max_tokens=2, extra_headers={"X-Request-Id": "client-7"}
    )
    check("request id: kept", raw.headers["x-request-id"] == "client-7", raw.headers)
    answer = client.responses.create(model="sim", input="What is a lease?", max_output_tokens=12)
    check("responses: words", bool(answer.output_text), answer)
    text = ""
    for event in client.responses.create(model="sim", input="What is a lease?", max_output_tokens=12, stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
    check("responses: streamed equals whole", text == answer.output_text, text)


async def parallel():
    async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0, timeout=60) as many:

        async def one(number, stream):
            ask = {"model": "sim", "messages": user(f"Number {number}: " + "count " * number), "max_tokens": 20}
            if not stream:
                return (await many.chat.completions.create(**ask)).choices[0].message.content
            pieces = await many.chat.completions.create(stream=True, **ask)
            return "".join([c.choices[0].delta.content or "" async for c in pieces if c.choices])

        streamed = await asyncio.gather(*(one(n, True) for n in range(50)))
        whole = await asyncio.gather(*(one(n, False) for n in range(50)))
    check("50 parallel streams: all have words", all(streamed), streamed)
    check("50 parallel streams: each equals its whole", streamed == whole, (streamed, whole))
    check("50 parallel streams: none has another's text", len(set(streamed)) == 50)


def streams_in_parallel():
    asyncio.run(parallel())


for work in (texts, choices, prompts, logprobs, tools, usage, megabyte, errors, surface, streams_in_parallel):
    guarded(work)
print(f"{len(wrong)} wrong" if wrong else "all ok")
sys.exit(1 if wrong else 0)
