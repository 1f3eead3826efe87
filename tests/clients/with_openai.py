"""openai for Python: what tests/openai_client.py leaves out: the asynchronous client, responses, raw answers, hanging up."""
import asyncio
import os

import openai
from checks import (BROKEN_MESSAGE, DESERTED, EXPECTED, GATEWAY, KEY, LINE, LONG, POOR_KEY, QUESTION, TOKENS, abandoned, check, done,
                    equal, guarded, raised, will_break)

given = {"openai": openai}
exec(LINE, given)
client = given["client"].with_options(max_retries=0, timeout=60)
MESSAGES = [{"role": "user", "content": QUESTION}]
ASK = {"model": "sim", "messages": MESSAGES, "max_tokens": TOKENS}
CHAT = EXPECTED["chat"]
TEXT = CHAT["choices"][0]["message"]["content"]


def counted(usage):
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


COUNTS = tuple(CHAT["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens"))


def whole():
    answer = client.chat.completions.create(**ASK)
    equal("chat: text", answer.choices[0].message.content, TEXT)
    equal("chat: finish", answer.choices[0].finish_reason, "length")
    equal("chat: usage", counted(answer.usage), COUNTS)
    check("chat: ids", answer.id and answer._request_id and answer._request_id in answer.id, (answer.id, answer._request_id))
    answer = client.completions.create(model="sim", prompt=QUESTION, max_tokens=TOKENS)
    equal("completion: text", answer.choices[0].text, EXPECTED["completion"]["choices"][0]["text"])
    raw = client.chat.completions.with_raw_response.create(**ASK, extra_headers={"X-Request-Id": "client-8"})
    equal("raw answer: request id", raw.request_id, "client-8")
    equal("raw answer: parsed", raw.parse().choices[0].message.content, TEXT)
    vectors = client.embeddings.create(model="sim", input=["one", "another"], encoding_format="float").data
    equal("embeddings", [v.embedding for v in vectors], [v["embedding"] for v in EXPECTED["embeddings"]["data"]])
    equal("models", [model.id for model in client.models.list()], os.environ["MODELS"].split())


def streamed():
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    equal("stream: text", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), TEXT)
    equal("stream: usage", counted(chunks[-1].usage), COUNTS)
    equal("stream: one id", len({c.id for c in chunks}), 1)
    with client.chat.completions.stream(**ASK) as stream:
        if error := raised("stream helper, cut by max_tokens", openai.LengthFinishReasonError, stream.get_final_completion):
            equal("stream helper: text", error.completion.choices[0].message.content, TEXT)


def responses():
    expected = EXPECTED["responses"]
    text = expected["output"][0]["content"][0]["text"]
    answer = client.responses.create(model="sim", input=QUESTION, max_output_tokens=TOKENS)
    equal("responses: text", answer.output_text, text)
    equal("responses: usage", answer.usage.output_tokens, expected["usage"]["output_tokens"])
    equal("responses: status", answer.status, expected["status"])
    events = list(client.responses.create(model="sim", input=QUESTION, max_output_tokens=TOKENS, stream=True))
    equal("responses, streamed: text", "".join(e.delta for e in events if e.type == "response.output_text.delta"), text)
    equal("responses, streamed: whole at its end", events[-1].response.output_text, text)
    equal("responses, streamed: id", len({e.response.id for e in events if hasattr(e, "response")}), 1)


async def together():
    async with openai.AsyncOpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY, max_retries=0, timeout=60) as many:
        answers = await asyncio.gather(*(many.chat.completions.create(**ASK) for _ in range(8)))
        equal("async: texts", {a.choices[0].message.content for a in answers}, {TEXT})
        equal("async: ids of their own", len({a.id for a in answers}), 8)
        pieces = [c.choices[0].delta.content or "" async for c in await many.chat.completions.create(**ASK, stream=True) if c.choices]
        equal("async: streamed", "".join(pieces), TEXT)


def asynchronous():
    asyncio.run(together())


def tools():
    call = client.chat.completions.create(**ASK, tools=[EXPECTED["tool_definition"]],
                                          tool_choice={"type": "function", "function": {"name": "note"}}).choices[0].message.tool_calls[0]
    expected = EXPECTED["tool"]["choices"][0]["message"]["tool_calls"][0]["function"]
    equal("tools: call", (call.function.name, call.function.arguments), (expected["name"], expected["arguments"]))


def errors():
    def asks(of, **more):
        return lambda: of.chat.completions.create(**ASK | more)

    if error := raised("bad key", openai.AuthenticationError, asks(client.with_options(api_key="sk-bad"))):
        equal("bad key: code", (error.status_code, error.code, error.type), (401, "invalid_api_key", "authentication_error"))
    if error := raised("bad model", openai.NotFoundError, asks(client, model="nope")):
        check("bad model: message", "The model `nope` does not exist" in error.message and error.request_id, error)
    if error := raised("bad value", openai.BadRequestError, asks(client, temperature=-1)):
        equal("bad value: param", error.param, "temperature")
    poor = client.with_options(api_key=POOR_KEY)
    if error := raised("used up", openai.RateLimitError, lambda: [asks(poor)() for _ in range(2)]):
        equal("used up: code", error.code, "rate_limit_exceeded")
        check("used up: when to come back", int(error.response.headers["retry-after"]) > 0, error.response.headers)
    if error := raised("no engines", openai.InternalServerError, asks(client.with_options(base_url=f"{DESERTED}/v1"))):
        check("no engines: code", error.status_code in (502, 503) and error.code in ("prefill_failed", "no_prefiller", "no_decoder", "decode_failed"), error)


def breaks():
    will_break("/v1/chat/completions", "break for openai-python")
    stream = client.chat.completions.create(model="sim", max_tokens=60, stream=True,
                                            messages=[{"role": "user", "content": "break for openai-python"}])
    read = []
    if error := raised("broken stream", openai.APIError, lambda: read.extend(stream)):
        equal("broken stream: message and code", (error.message, error.code), (BROKEN_MESSAGE, "decode_failed"))
    check("broken stream: what came before", len(read) > 1, read)


def response_breaks():
    will_break("/v1/responses", "break a response for openai-python")
    stream = client.responses.create(model="sim", max_output_tokens=60, stream=True, input="break a response for openai-python")
    read = []
    if error := raised("broken response", openai.APIError, lambda: read.extend(stream)):
        equal("broken response: message and code", (error.message, error.code), (BROKEN_MESSAGE, "decode_failed"))
    numbers = [event.sequence_number for event in read]
    check("broken response: what came before", len(numbers) > 1 and numbers == list(range(len(numbers))), numbers)


def leaves():
    stream = client.chat.completions.create(**ASK | {"max_tokens": LONG}, stream=True)
    for chunk, _ in zip(stream, range(5)):
        check("left stream: a chunk", chunk.id)
    abandoned("left stream", stream.close)


for work in (whole, streamed, responses, asynchronous, tools, errors, breaks, response_breaks, leaves):
    guarded(work)
done("openai-python", openai.__version__)
