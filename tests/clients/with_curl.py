"""The lines that the demo prints, as they are, and what an engine alone answers to the same bodies."""
import json
import os
import re
import shlex
import subprocess

from checks import ask, check, done, equal, guarded

LINES = os.environ["DEMO_LINES"].splitlines()


def printed_lines():
    equal("the demo prints two lines", len(LINES), 2)
    for number, line in enumerate(LINES, 1):
        words = shlex.split(line)
        body = next(json.loads(word) for word in words if word.startswith("{"))
        said = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        equal(f"line {number}: exit code", said.returncode, 0)
        events = re.findall(r"^data: (.*)$", said.stdout, re.M)
        equal(f"line {number}: its end", events[-1], "[DONE]")
        chunks = [json.loads(event) for event in events[:-1]]
        text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        whole = ask(f"{os.environ['ALONE']}/v1/chat/completions", {**body, "stream": False})
        equal(f"line {number}: text", text, whole["choices"][0]["message"]["content"])
        finish = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
        equal(f"line {number}: finish", finish, [whole["choices"][0]["finish_reason"]])
        check(f"line {number}: one id", len({chunk["id"] for chunk in chunks}) == 1, chunks[:1])


guarded(printed_lines)
version = subprocess.run(["curl", "--version"], capture_output=True, text=True, timeout=10).stdout.split()[1]
done("curl", version)
