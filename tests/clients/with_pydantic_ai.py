"""Pydantic AI, over the Responses API."""
import asyncio
import importlib.metadata

from checks import BROKEN_MESSAGE, EXPECTED, LINE, QUESTION, TOKENS, check, done, equal, guarded, raised, will_break
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

given = {"OpenAIProvider": OpenAIProvider, "OpenAIResponsesModel": OpenAIResponsesModel}
exec(LINE, given)
agent = Agent(given["client"], retries=0)
ANSWER = EXPECTED["responses"]
TEXT = "".join(part["text"] for item in ANSWER["output"] for part in item.get("content", []))
USAGE = ANSWER["usage"]["input_tokens"], ANSWER["usage"]["output_tokens"]


def whole():
    result = agent.run_sync(QUESTION, model_settings={"max_tokens": TOKENS})
    equal("whole: text", result.output, TEXT)
    equal("whole: usage", (result.usage().input_tokens, result.usage().output_tokens), USAGE)


async def read(question, limit):
    """The text of a streamed answer."""
    async with agent.run_stream(question, model_settings={"max_tokens": limit}) as answer:
        return [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]


def streamed():
    equal("streamed: text", "".join(asyncio.run(read(QUESTION, TOKENS))), TEXT)


def breaks():
    will_break("/v1/responses", "break for pydantic-ai")
    if error := raised("broken stream", Exception, lambda: asyncio.run(read("break for pydantic-ai", 60))):
        check("broken stream: message", BROKEN_MESSAGE in str(error), error)


for work in (whole, streamed, breaks):
    guarded(work)
done("pydantic-ai", importlib.metadata.version("pydantic-ai-slim"))
