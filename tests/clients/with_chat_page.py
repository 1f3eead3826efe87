"""Gradio's chat page in front of the gateway, used by a browser: what people read is what the engine says."""
import importlib.metadata
import os
import pathlib
import shutil
import sys
import tempfile

from playwright.sync_api import sync_playwright

from browser import launch
from checks import ENGINES, LINE, QUESTION, ask, check, done, equal, guarded, still_open
from processes import Process, ask_json, free_port

ALONE = os.environ["ALONE"]
AGAIN = "And which one comes last?"
ANSWERS = "[...document.querySelectorAll('[data-testid=bot]')].map(it => it.innerText.trim())"
# Nothing can be written while an answer comes.
READY = "document.querySelector('textarea')?.disabled === false"


def says(*turns):
    """What an engine that serves alone answers to these turns, questions and answers by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    return ask_json(ALONE, "/v1/chat/completions", {"model": "sim", "messages": messages})["choices"][0]["message"]["content"]


def words(text):
    """A page sets text anew: only its words count."""
    return text.split()


def main(page):
    def send(text):
        page.wait_for_function(READY)
        page.locator("textarea").focus()
        page.keyboard.insert_text(text)
        page.keyboard.press("Enter")
        page.wait_for_function(f"!({READY})")

    def answered(count):
        page.wait_for_function(f"{READY} && {ANSWERS}.length === {count}")
        return page.evaluate(ANSWERS)[-1]

    def talk():
        first = says(QUESTION)
        send(QUESTION)
        equal("first turn", words(answered(1)), words(first))
        send(AGAIN)
        equal("second turn", words(answered(2)), words(says(QUESTION, first, AGAIN)))
        check("nobody works any more", not still_open(), still_open())

    def refused():
        fault = {"path": "/v1/chat/completions", "contains": "out of order", "times": 1, "what": {"kind": "status", "status": 400}}
        ask(f"{ENGINES[0]}/sim/faults", fault)
        send("Are you out of order?")
        page.wait_for_function("/error/i.test(document.body.innerText)")
        check("a refusal is seen", True)

    for work in (talk, refused):
        guarded(work)


browser = shutil.which("chromium") or shutil.which("google-chrome")
if not browser:
    print("client chat-page: no Chromium is here: see tests/status.sh")
    sys.exit(1)
with tempfile.TemporaryDirectory() as scratch:
    port = free_port()
    environment = os.environ | {"GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False", "HOME": scratch}
    script = pathlib.Path(scratch, "page.py")
    script.write_text(LINE)
    server = Process(scratch, "page", [sys.executable, "-u", str(script)], environment)
    try:
        server.wait_for(r"http://127.0.0.1:(\d+)")
        with sync_playwright() as playwright:
            tab = launch(playwright, browser).new_page()
            tab.goto(f"http://127.0.0.1:{port}")
            main(tab)
    finally:
        server.end()
done("chat-page", f"gradio {importlib.metadata.version('gradio')}")
