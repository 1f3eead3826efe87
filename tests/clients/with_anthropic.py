"""Anthropic's client for Python, on /v1/messages."""
import anthropic
from checks import (BROKEN_MESSAGE, DESERTED, EXPECTED, LINE, LONG, POOR_KEY, QUESTION, TOKENS, abandoned, check, done, equal, guarded,
                    raised, will_break)

given = {"anthropic": anthropic}
exec(LINE, given)
client = given["client"].with_options(max_retries=0, timeout=60)
ASK = {"model": "sim", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": TOKENS}
MESSAGE = EXPECTED["messages"]
TEXT = MESSAGE["content"][0]["text"]


def counts(usage):
    """Tokens of the prompt and of the answer. Whole answers tell cached tokens apart, streams don't (vLLM 0.32)."""
    return usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0), usage["output_tokens"]


def compare(name, answer):
    equal(f"{name}: text", answer.content[0].text, TEXT)
    equal(f"{name}: stop reason", answer.stop_reason, MESSAGE["stop_reason"])
    equal(f"{name}: usage", counts(answer.usage.to_dict()), counts(MESSAGE["usage"]))
    check(f"{name}: id", answer.id and answer.type == "message" and answer.role == "assistant", answer)


def whole():
    compare("create", client.messages.create(**ASK))
    compare("create, beta", client.beta.messages.create(**ASK))
    raw = client.messages.with_raw_response.create(**ASK, extra_headers={"X-Request-Id": "client-9"})
    equal("raw answer: request id", raw.headers["x-request-id"], "client-9")
    equal("raw answer: request id as Anthropic calls it", raw.headers["request-id"], "client-9")
    bearer = client.with_options(api_key=None, auth_token=client.api_key)
    compare("by auth token", bearer.messages.create(**ASK))


def streamed():
    with client.messages.stream(**ASK) as stream:
        equal("stream: text", "".join(stream.text_stream), TEXT)
        compare("stream, whole", stream.get_final_message())
    kinds = [event.type for event in client.messages.create(**ASK, stream=True)]
    equal("events: begin and end", (kinds[:2], kinds[-3:]), (["message_start", "content_block_start"],
                                                          ["content_block_stop", "message_delta", "message_stop"]))


def errors():
    def asks(of, **more):
        return lambda: of.messages.create(**ASK | more)

    if error := raised("bad key", anthropic.AuthenticationError, asks(client.with_options(api_key="sk-bad"))):
        equal("bad key: members", (error.body["error"]["type"], error.body["error"]["code"]), ("authentication_error", "invalid_api_key"))
    if error := raised("bad model", anthropic.NotFoundError, asks(client, model="nope")):
        check("bad model: message", "The model `nope` does not exist" in str(error), error)
    if error := raised("bad value", anthropic.BadRequestError, asks(client, max_tokens=-1)):
        check("bad value: message", "max_tokens must be at least 1" in str(error), error)
    poor = client.with_options(api_key=POOR_KEY)
    if error := raised("used up", anthropic.RateLimitError, lambda: [asks(poor)() for _ in range(2)]):
        check("used up: when to come back", int(error.response.headers["retry-after"]) > 0, error.response.headers)
    if error := raised("no engines", anthropic.InternalServerError, asks(client.with_options(base_url=DESERTED))):
        check("no engines: code", error.body["error"]["code"] in ("prefill_failed", "no_prefiller", "no_decoder", "decode_failed"), error)


def breaks():
    will_break("/v1/messages", "break for anthropic-python")
    read = []
    ask = ASK | {"messages": [{"role": "user", "content": "break for anthropic-python"}], "max_tokens": 60}
    if error := raised("broken stream", anthropic.APIStatusError, lambda: read.extend(client.messages.create(**ask, stream=True))):
        check("broken stream: message", BROKEN_MESSAGE in str(error), error)
    check("broken stream: what came before", len(read) > 1, read)


def leaves():
    stream = client.messages.create(**ASK | {"max_tokens": LONG}, stream=True)
    for event, _ in zip(stream, range(5)):
        check("left stream: an event", event.type)
    abandoned("left stream", stream.close)


for work in (whole, streamed, errors, breaks, leaves):
    guarded(work)
done("anthropic-python", anthropic.__version__)
