"""LiteLLM's SDK."""
import asyncio
import importlib.metadata

import litellm
from checks import BROKEN_MESSAGE, EXPECTED, LINE, LONG, QUESTION, TOKENS, abandoned, check, done, equal, guarded, raised, will_break

given = {}
exec(LINE, given)
client = given["client"] | {"max_retries": 0, "num_retries": 0}
ASK = client | {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": TOKENS}
TEXT = EXPECTED["chat"]["choices"][0]["message"]["content"]
USAGE = EXPECTED["chat"]["usage"]
COUNTS = USAGE["prompt_tokens"], USAGE["completion_tokens"]


def compare(name, answer):
    equal(f"{name}: text", answer.choices[0].message.content, TEXT)
    equal(f"{name}: finish", answer.choices[0].finish_reason, "length")
    equal(f"{name}: usage", (answer.usage.prompt_tokens, answer.usage.completion_tokens), COUNTS)
    check(f"{name}: id", answer.id.startswith("chatcmpl-"), answer.id)


def whole():
    compare("completion", litellm.completion(**ASK))
    compare("acompletion", asyncio.run(litellm.acompletion(**ASK)))
    compare("as hosted_vllm", litellm.completion(**ASK | {"model": "hosted_vllm/sim"}))
    vectors = litellm.embedding(**client, input=["one", "another"], encoding_format="float").data
    equal("embeddings", [v["embedding"] for v in vectors], [v["embedding"] for v in EXPECTED["embeddings"]["data"]])


def streamed():
    chunks = list(litellm.completion(**ASK, stream=True, stream_options={"include_usage": True}))
    equal("stream: text", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), TEXT)
    compare("stream, put together", litellm.stream_chunk_builder(chunks, messages=ASK["messages"]))


def tools():
    answer = litellm.completion(**ASK, tools=[EXPECTED["tool_definition"]], tool_choice={"type": "function", "function": {"name": "note"}})
    call = answer.choices[0].message.tool_calls[0].function
    expected = EXPECTED["tool"]["choices"][0]["message"]["tool_calls"][0]["function"]
    equal("tools: call", (call.name, call.arguments), (expected["name"], expected["arguments"]))


def errors():
    def asks(**more):
        return lambda: litellm.completion(**ASK | more)

    if error := raised("bad key", litellm.AuthenticationError, asks(api_key="sk-bad")):
        check("bad key: message", error.status_code == 401 and "the API key is not known" in error.message, error)
    if error := raised("bad model", litellm.NotFoundError, asks(model="openai/nope")):
        check("bad model: message", "does not exist" in error.message, error)
    if error := raised("bad value", litellm.BadRequestError, asks(max_tokens=-1)):
        check("bad value: message", "max_tokens must be at least 1" in error.message, error)


def breaks():
    will_break("/v1/chat/completions", "break for litellm")
    ask = ASK | {"messages": [{"role": "user", "content": "break for litellm"}], "max_tokens": 60}
    read = []
    if error := raised("broken stream", litellm.ServiceUnavailableError, lambda: read.extend(litellm.completion(**ask, stream=True))):
        check("broken stream: message", BROKEN_MESSAGE in str(error), error)
    check("broken stream: what came before", len(read) > 1, read)


def leaves():
    stream = litellm.completion(**ASK | {"max_tokens": LONG}, stream=True)
    for chunk, _ in zip(stream, range(5)):
        check("left stream: a chunk", chunk.id)
    abandoned("left stream", stream.completion_stream.close)


for work in (whole, streamed, tools, errors, breaks, leaves):
    guarded(work)
done("litellm", importlib.metadata.version("litellm"))
