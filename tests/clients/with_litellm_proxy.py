"""LiteLLM's proxy between openai's client and the gateway."""
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

import openai
from checks import EXPECTED, LINE, LONG, QUESTION, TOKENS, abandoned, check, done, equal, guarded, raised
from processes import free_port

START_SECONDS = 90
ASK = {"model": "sim", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": TOKENS}
TEXT = EXPECTED["chat"]["choices"][0]["message"]["content"]
USAGE = EXPECTED["chat"]["usage"]


def started(folder, address):
    """The proxy, once it answers."""
    config = pathlib.Path(folder, "config.yaml")
    config.write_text(LINE + "litellm_settings: {num_retries: 0}\ngeneral_settings: {master_key: sk-proxy}\n")
    program = pathlib.Path(sys.executable).with_name("litellm")
    with pathlib.Path(folder, "log").open("w") as log:
        proxy = subprocess.Popen([program, "--config", config, "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--telemetry", "False"],
                                 stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=os.environ | {"HOME": folder})
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and proxy.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/health/liveliness", timeout=2).close()
            return proxy
        except OSError:
            time.sleep(0.2)
    proxy.kill()
    raise SystemExit(f"the proxy did not start:\n{pathlib.Path(folder, 'log').read_text()[-3000:]}")


def main(address):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="sk-proxy", max_retries=0, timeout=60)

    def whole():
        answer = client.chat.completions.create(**ASK)
        equal("chat: text", answer.choices[0].message.content, TEXT)
        equal("chat: finish", answer.choices[0].finish_reason, "length")
        equal("chat: usage", (answer.usage.prompt_tokens, answer.usage.completion_tokens), (USAGE["prompt_tokens"], USAGE["completion_tokens"]))

    def streamed():
        chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
        equal("stream: text", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), TEXT)
        equal("stream: usage", chunks[-1].usage.completion_tokens, USAGE["completion_tokens"])

    def errors():
        if error := raised("bad value", openai.BadRequestError, lambda: client.chat.completions.create(**ASK | {"max_tokens": -1})):
            check("bad value: message", "max_tokens must be at least 1" in error.message, error)

    def leaves():
        stream = client.chat.completions.create(**ASK | {"max_tokens": LONG}, stream=True)
        for chunk, _ in zip(stream, range(5)):
            check("left stream: a chunk", chunk.id)
        abandoned("left stream", stream.close)

    for work in (whole, streamed, errors, leaves):
        guarded(work)


with tempfile.TemporaryDirectory() as scratch:
    url = f"http://127.0.0.1:{free_port()}"
    proxy = started(scratch, url)
    try:
        main(url)
    finally:
        proxy.terminate()
        try:
            proxy.wait(10)
        except subprocess.TimeoutExpired:
            proxy.kill()
            proxy.wait()
done("litellm-proxy", importlib.metadata.version("litellm"))
