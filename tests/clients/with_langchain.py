"""LangChain's ChatOpenAI."""
import importlib.metadata
import json

import openai
from checks import BROKEN_MESSAGE, EXPECTED, LINE, LONG, QUESTION, TOKENS, abandoned, check, done, equal, guarded, raised, will_break
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

given = {"ChatOpenAI": ChatOpenAI}
exec(LINE, given)
client = given["client"]
SAME = {"max_retries": 0, "base_url": client.openai_api_base, "api_key": client.openai_api_key, "model": client.model_name}
# For bases other than OpenAI's it does not ask for the usage of streams by itself.
brief = ChatOpenAI(max_tokens=TOKENS, stream_usage=True, **SAME)
TEXT = EXPECTED["chat"]["choices"][0]["message"]["content"]
USAGE = EXPECTED["chat"]["usage"]
COUNTS = USAGE["prompt_tokens"], USAGE["completion_tokens"]


class note(BaseModel):
    """A note."""

    text: str


def compare(name, answer):
    equal(f"{name}: text", answer.content, TEXT)
    equal(f"{name}: usage", (answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]), COUNTS)
    equal(f"{name}: finish", answer.response_metadata["finish_reason"], "length")


def whole():
    check("as docs/clients.md has it", client.invoke(QUESTION).content.startswith(TEXT))
    compare("invoke", brief.invoke(QUESTION))
    for answer in brief.batch([QUESTION, QUESTION, QUESTION]):
        compare("batch", answer)
    chain = ChatPromptTemplate.from_messages([("user", "{question}")]) | brief
    compare("chain", chain.invoke({"question": QUESTION}))


def streamed():
    chunks = list(brief.stream(QUESTION))
    check("stream: in pieces", len(chunks) > TOKENS / 2, len(chunks))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    compare("stream", total)


def tools():
    tool = EXPECTED["tool_definition"]["function"]
    call = brief.bind_tools([EXPECTED["tool_definition"]], tool_choice=tool["name"]).invoke(QUESTION).tool_calls[0]
    expected = EXPECTED["tool"]["choices"][0]["message"]["tool_calls"][0]["function"]
    equal("tools: name", call["name"], expected["name"])
    equal("tools: arguments", call["args"], json.loads(expected["arguments"]))
    made = brief.with_structured_output(note, method="function_calling").invoke(QUESTION)
    check("structured output", isinstance(made, note) and made.text, made)


def embeddings():
    vectors = OpenAIEmbeddings(**SAME, check_embedding_ctx_length=False).embed_documents(["one", "another"])
    equal("embeddings", vectors, [v["embedding"] for v in EXPECTED["embeddings"]["data"]])


def errors():
    def asks(**more):
        return lambda: ChatOpenAI(**SAME | more).invoke(QUESTION)

    if error := raised("bad key", openai.AuthenticationError, asks(api_key="sk-bad")):
        equal("bad key: code", error.code, "invalid_api_key")
    if error := raised("bad model", openai.NotFoundError, asks(model="nope")):
        check("bad model: message", "does not exist" in str(error), error)


def breaks():
    will_break("/v1/chat/completions", "break for langchain")
    if error := raised("broken stream", openai.APIError, lambda: list(brief.stream("break for langchain"))):
        equal("broken stream: message", error.message, BROKEN_MESSAGE)


def leaves():
    stream = ChatOpenAI(max_tokens=LONG, **SAME).stream(QUESTION)
    for chunk, _ in zip(stream, range(5)):
        check("left stream: a chunk", chunk.id)
    abandoned("left stream", stream.close)


for work in (whole, streamed, tools, embeddings, errors, breaks, leaves):
    guarded(work)
done("langchain-openai", importlib.metadata.version("langchain-openai"))
