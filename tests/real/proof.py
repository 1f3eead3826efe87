#!/usr/bin/env python3
"""Starts the gateway before a real vLLM engine: with the model's files, with a chat template that is not quite the
engine's, and with a wrong block size.

kv_events.sh runs it on each of its engines. Exit status 0: the gateway told right from wrong, and said why.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

WAIT_SECONDS = 300
DIFFERENCE = r'ERROR the tokens of request "(.+?)" differ from the engine\'s: (token \d+ is .+ here and .+ there);'
TEMPLATE = "chat_template.jinja"


class Serving:
    """A gateway whose prefiller and decoder are the engine, and which tokenises by the files of `model`."""

    def __init__(self, args, model, *more):
        engine = f"127.0.0.1:{args.port}"
        command = [args.gateway, "--host", "127.0.0.1", "--port", "0", "--prefill", engine, "--decode", engine]
        command += ["--model-path", model, "--set", "prompt.tokens=local", "--set", "prompt.verify_interval_ms=1000"]
        if args.seed != "unset":
            command += ["--set", f'hash.seed="{args.seed}"']
        self.file = tempfile.TemporaryFile("w+", encoding="utf-8")
        own = ("PD_PROXY", "PYTHONHASHSEED")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        self.process = subprocess.Popen([*command, *more], stdout=self.file, stderr=self.file, env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *_failure):
        self.process.kill()
        self.process.wait()
        self.file.close()

    def said(self):
        """All that it printed so far."""
        # Not by our own offset, which the child shares.
        return os.pread(self.file.fileno(), os.fstat(self.file.fileno()).st_size, 0).decode()

    def until(self, what, find):
        """What `find` finds, as soon as that is something."""
        end = time.monotonic() + WAIT_SECONDS
        while not (found := find()):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no {what}, exit status {self.process.poll()}; the gateway said:\n{self.said()}")
            time.sleep(0.1)
        return found

    def line(self, pattern):
        """The match of a line that it logs, now or later."""
        return self.until(pattern, lambda: re.search(pattern, self.said()))

    def metrics(self):
        """Its samples, by name and labels."""
        url = self.line(r"listening on (http://[^\s\"]+)")[1] + "/metrics"
        lines = urllib.request.urlopen(url, timeout=WAIT_SECONDS).read().decode().splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))

    def shows(self, **samples):
        """Waits for metrics of these values."""
        wanted = {f"pd_proxy_{name}": str(value) for name, value in samples.items()}.items()
        self.until(f"metrics {wanted}", lambda: wanted <= self.metrics().items())


def proven(args):
    """The right files, and all that is known of how blocks are named."""
    with Serving(args, args.model) as gateway:
        gateway.shows(tokens_proven=1, block_names_known=1)
        compared, skipped = gateway.line(r"our tokens are the engine's .*compared=(\d+) skipped=(\{.*\})").groups()
        block = gateway.line(r"blocks can be named block_tokens=(\d+)")[1]
    if block != args.block:
        raise RuntimeError(f"blocks of {block} tokens, the engine's have {args.block}")
    return f"tokens proven by {compared} requests, skipped {skipped}, names known of blocks of {block} tokens"


def refuted(args):
    """A template that differs from the engine's in one character."""
    with open(f"{args.model}/{TEMPLATE}", encoding="utf-8") as file:
        head, word, tail = file.read().rpartition("assistant")
    if not word:
        raise RuntimeError("no word in the template to change")
    with tempfile.TemporaryDirectory() as model:
        for name in os.listdir(args.model):
            os.symlink(os.path.realpath(f"{args.model}/{name}"), f"{model}/{name}")
        os.remove(f"{model}/{TEMPLATE}")
        with open(f"{model}/{TEMPLATE}", "w", encoding="utf-8") as file:
            file.write(f"{head}assistent{tail}")
        with Serving(args, model) as gateway:
            place = gateway.line(DIFFERENCE)
            # The gauge is 0 before, too: what counts is that it still is, now that they were compared.
            gateway.shows(tokens_proven=0, block_names_known=1)
            different = gateway.metrics().get('pd_proxy_token_parity_checks_total{verdict="different"}')
    if different != "1":
        raise RuntimeError(f"{different} comparisons that found a difference")
    return f"one character of the template changed, tokens not proven: in request {place[1]}, {place[2]}"


def refused(args):
    """Blocks of another size than the engine's."""
    wrong = str(2 * int(args.block))
    with Serving(args, args.model, "--block-size", wrong) as gateway:
        status = gateway.process.wait(WAIT_SECONDS)
        said = gateway.said().strip()
    both = "hash.block_tokens", f"says {wrong}", f"127.0.0.1:{args.port}", f"says {args.block}"
    if status == 0 or not all(words in said for words in both):
        raise RuntimeError(f"exit status {status}, and it said:\n{said}")
    return f"a block size of {wrong}, exit status {status}: {said.splitlines()[-1]}"


def tells(args, check):
    """Prints a line on a start of the gateway; whether it went as it should."""
    try:
        print(f"ok gateway: {check(args)}", flush=True)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as wrong:
        print(f"WRONG gateway, {check.__name__}: {wrong}", flush=True)
        return False
    return True


def main():
    parser = argparse.ArgumentParser()
    for flag in ("gateway", "model", "port", "block", "seed"):
        parser.add_argument(f"--{flag}", required=True)
    args = parser.parse_args()
    right = [tells(args, check) for check in (proven, refuted, refused)]
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
