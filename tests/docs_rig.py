"""What the documents' commands are run in front of: simulated engines and pools at addresses of this machine, for docs.py.

Documents say 10.0.0.x; here that is 127.a.b.x, another a.b in each run, with the ports that the documents have. 0.0.0.0 and localhost
are 10.0.0.9, the gateway's host. Engines tokenize, since no model is here. /etc/pd-proxy is the folder of the run.
"""
import os
import pathlib
import re
import shlex
import subprocess
import time

from processes import Process

SECONDS = 20
# How the simulator calls the dialects that it is told of; others hand over.
CONNECTORS = {"pool": "pool", "layerwise": "layerwise", "mooncake": "mooncake", "nixl_push": "push", "sglang": "sglang",
              "moriio": "moriio"}
BACKGROUND = ("demo", "sim")


def matches(expected, printed, search=False):
    """Whether that was printed; … stands for anything, also in several lines."""
    pattern = ".*".join(map(re.escape, expected.strip().split("…")))
    test = re.search if search else re.fullmatch
    return bool(test(pattern, printed.strip(), re.S))


def commands(block):
    """What a block runs, each with what it is shown to print; None where nothing is shown."""
    if block.language == "sh":
        parts = block.text.split("\n\n")
        # Several gateways, one after the other; all else is one script.
        return [(part, None) for part in parts] if all(part.startswith("pd-proxy ") for part in parts) else [(block.text, None)]
    found = []
    for line in block.lines:
        if line.startswith("$ "):
            found.append([line[2:] + "\n", ""])
        elif found and found[-1][0].endswith("\\\n"):
            found[-1][0] += line + "\n"
        elif found:
            found[-1][1] += line + "\n"
    return found


class Rig:
    """Engines, pools and gateways of one document."""

    count = 0

    def __init__(self, program, folder, text):
        Rig.count += 1
        self.program, self.folder = program, folder
        self.net = f"127.{100 + os.getpid() % 100}.{1 + Rig.count % 250}"
        self.model = (re.findall(r'"model": ?"([^"]+)"', text) or ["Qwen3-8B"])[0]
        self.running, self.gateway, self.files = {}, None, {}
        (folder / "bin").mkdir()
        (folder / "bin/pd-proxy").symlink_to(program)
        self.env = {key: value for key, value in os.environ.items() if not re.match(r"(PD_PROXY|ADMIN_API|OPENAI_API|\w*_proxy$)", key, re.I)}
        self.env |= {"PATH": f"{folder}/bin:{os.environ['PATH']}", "no_proxy": "*"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [self.gateway, *self.running.values()]:
            if process:
                process.end()

    def here(self, text):
        """The same text with the addresses and folders of this run."""
        text = re.sub(r"\b10\.0\.0\.(\d+)\b", rf"{self.net}.\1", text)
        text = re.sub(r"\b0\.0\.0\.0\b|\blocalhost(?=[:\"])|(?<=--host )localhost\b", f"{self.net}.9", text)
        text = text.replace("/etc/pd-proxy", str(self.folder))
        return re.sub(r"(\btokens ?= ?\"?)local\b", r"\1engine", text)

    def file(self, named, block):
        """Writes a document's file; a part of one is laid over it by being read behind it."""
        if named and not block.lines[0].startswith("# part of "):
            (self.folder / named[1]).write_text(self.here(block.text))
            if "[[key]]" not in block.lines:
                self.engines(["--config", named[1]])

    def engines(self, flags):
        """Starts what a configuration names and is not there yet; what is wrong with it."""
        run = subprocess.run([self.program, "check", "--offline", "--show", *flags], capture_output=True, text=True, cwd=self.folder,
                             env=self.env, timeout=SECONDS)
        if run.returncode:
            return f"ended with {run.returncode}: {run.stderr.strip()}"
        told = {}
        for line in run.stdout.splitlines():
            if head := re.match(r"\[([\w.-]+)\]", line):
                section = head[1]
            elif key := re.match(r"(\w+) += (.*?) +# \S", line):
                told[f"{section}.{key[1]}"] = re.findall(r'"([^"]*)"', key[2]) if key[2][0] == "[" else key[2].strip('"')
        names = {key.split(".")[1] for key in told if key.startswith("fleets.")}
        for name in names:
            prefix = f"fleets.{name}."
            self.members(told | {key.removeprefix(prefix): value for key, value in told.items() if key.startswith(prefix)}, True)
        if not names:
            self.members(told, False)
        return None

    def members(self, told, named):
        """Starts the engines and pools of one fleet; of several, each serves the fleet's model."""
        connector = CONNECTORS.get(told["dialect.name"], "handoff")
        model = told.get("fleet.model", self.model) if named else self.model
        tokens = told["hash.block_tokens"].replace("_", "")
        roles = {}
        for role in ["prefill", "decode", "encode"]:
            for address in told[f"fleet.{role}"]:
                roles[address] = "both" if address in roles else {"encode": "both"}.get(role, role)
        for address, role in roles.items():
            self.start(address, "--role", role, "--model", model, "--connector", connector,
                       *(["--block-tokens", tokens] if tokens != "0" else []))
        if told["pool.kind"] == "mooncake":
            for address, admin in zip(told["pool.addresses"], told["pool.admins"] or told["pool.addresses"]):
                port = admin.rsplit(":", 1)[1] if admin != address else "0"
                self.start(address, "--admin-port", port, subcommand=["mooncake"])

    def start(self, address, *flags, subcommand=()):
        host, port = address.removeprefix("http://").rsplit(":", 1)
        if address not in self.running and host.startswith(self.net):
            command = [self.program, "sim", *subcommand, "--host", host, "--port", port, *flags]
            self.running[address] = Process(self.folder, f"sim-{len(self.running)}", command)
            self.running[address].wait_for("(simulated) ")

    def run(self, block):
        """Runs a block; yields what went wrong."""
        for command, expected in commands(block):
            command = self.here(command)
            words = shlex.split(command.replace("\\\n", " ")) if command.startswith("pd-proxy ") else []
            if words and (words[1].startswith("--") or words[1] in BACKGROUND) and "--help" not in words and "--version" not in words:
                problem = self.serve(words[1:], expected)
            else:
                problem = self.finish(command, expected)
            if problem:
                yield problem

    def serve(self, flags, expected):
        """A gateway, which is to be ready and to say what is shown."""
        if self.gateway:
            self.gateway.end()
        if flags[0].startswith("--") and (problem := self.engines(flags)):
            return problem
        # The demo has its own loopback.
        address = ["--host", f"{self.net}.9"] if flags[0] == "demo" else []
        self.gateway = Process(self.folder, "gateway", [self.program, *flags, *address], env=self.env)
        self.gateway.wait_for("(INFO ready|Metrics: http)")
        end = time.monotonic() + SECONDS
        while expected and not matches(self.here(expected), self.gateway.said(), search=True):
            if time.monotonic() > end:
                return f"it said:\n{self.gateway.said()}"
            time.sleep(0.1)
        return None

    def finish(self, command, expected):
        """A command, which is to end well and to print what is shown."""
        run = subprocess.run(["bash", "-euo", "pipefail", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             cwd=self.folder, env=self.env, timeout=SECONDS, stdin=subprocess.DEVNULL)
        if run.returncode:
            return f"{command.strip()!r} ended with {run.returncode}: {run.stdout.strip()[-600:]}"
        if expected and not matches(self.here(expected), run.stdout):
            return f"{command.strip()!r} printed:\n{run.stdout[-2000:]}"
        return None
