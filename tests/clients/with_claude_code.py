"""Claude Code, as people start it, against engines whose answers end by themselves: it goes on asking until one does."""
import contextlib
import json
import os
import pathlib
import shlex
import subprocess
import tempfile

from checks import KEY, LINE, check, done, equal, guarded
from processes import Process

PROGRAM = os.environ["PROGRAM"]
LISTENS = r"on (http://127\.0\.0\.1:\d+)"
# Of the command at the end of the line: it is beside the packages that it came with.
CLAUDE = pathlib.Path(os.environ["PACKAGES"], "node_modules", ".bin", "claude")
ASKS = ["--print", "Which leg comes first?", "--output-format", "stream-json", "--verbose", "--include-partial-messages"]
QUIET = {"CLAUDE_CODE_MAX_RETRIES": "0", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1"}


def claude(folder, address, key):
    """What one question made it say: its exit code, and its events."""
    words = shlex.split(LINE.replace(os.environ["GATEWAY"], address).replace(KEY, key))
    equal("the documented line ends with the command", words[-1:], ["claude"])
    variables = dict(word.split("=", 1) for word in words[:-1])
    environment = {"PATH": os.environ["PATH"], "HOME": folder, **QUIET, **variables}
    ended = subprocess.run([CLAUDE, *ASKS], env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")], ended.stderr


def told(answer):
    """The last event of a conversation, and the text as it was streamed."""
    code, events, error = answer
    results = [event for event in events if event["type"] == "result"]
    equal("it ends with a result", len(results), 1)
    deltas = [event["event"]["delta"].get("text", "") for event in events
              if event["type"] == "stream_event" and event["event"]["type"] == "content_block_delta"]
    return code, (results or [{}])[-1], "".join(deltas), error


def main(folder, stack):
    def start(name, *arguments):
        process = Process(folder, name, [PROGRAM, *arguments])
        stack.callback(process.end)
        return process, process.wait_for(LISTENS)[0]

    engines = [start(role, "sim", "--port", "0", "--role", role, "--answer-tokens", "12")[1] for role in ("prefill", "decode", "both")]
    gateway, address = start("claude-gateway", "--host", "127.0.0.1", "--port", "0", "--prefill", engines[0], "--decode", engines[1],
                             "--set", f'auth.keys_file="{os.environ["KEYS"]}"')

    def answers():
        # The day is in its prompt: one of the two was of the same day.
        alone = [told(claude(folder, engines[2], KEY))[1]["result"]]
        code, result, streamed, error = told(claude(folder, address, KEY))
        alone.append(told(claude(folder, engines[2], KEY))[1]["result"])
        equal("exit code", code, 0)
        equal("no error", result.get("is_error"), False)
        equal("it ended by itself", result.get("stop_reason"), "end_turn")
        check("an engine alone says the same", result.get("result") in alone and result.get("result"), (result, alone, error))
        equal("the same was streamed", streamed, result.get("result"))
        check("it counts tokens", result.get("usage", {}).get("input_tokens", 0) > 1000, result)
        gateway.wait_for(r'route="messages" key_name="good" status=200 .* prefiller="(127[^"]+)" decoder="(127[^"]+)"')

    def refused():
        code, result, _, _ = told(claude(folder, address, "sk-unknown"))
        check("an unknown key: it fails", code != 0 and result.get("is_error") is True, result)
        check("an unknown key: it says why", "401" in str(result.get("result")) or "API key" in str(result.get("result")), result)

    guarded(answers)
    guarded(refused)


with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as opened:
    main(place, opened)
version = subprocess.run([CLAUDE, "--version"], capture_output=True, text=True, timeout=30).stdout.split()[0]
done("claude-code", version)
