#!/usr/bin/env python3
"""The gauges for autoscalers (`pd_proxy_work_seconds`, `pd_proxy_saturation`, `pd_proxy_engines_needed`) on a real Prometheus while the load changes.

Two simulated prefillers and two decoders get little to do, then more than they bear; then prefillers are added as the gauge names them, and the load goes
down again. What the gauges show at the end of each phase is compared with the formula of docs/autoscaling.md, computed here from the load that was sent.
Started by scaling.sh. Exit status 0: all as it should be.
"""
import argparse
import json
import math
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

from processes import Process, ask, ask_json, free_port, get, wait
from scaling_plot import draw

WAIT_MS, TPOT_MS = 1000, 50
PREFILLERS = DECODERS = 2
PREFILL_TOKENS_PER_S = 1000
# About a second of prefill.
PROMPT, ANSWER_TOKENS = "and says more " * 230, 100
# A name, requests per second, seconds. A gauge is of the last minute, and what has piled up takes two.
PHASES = [("little", 0.5, 90), ("too much", 3.0, 60), ("more engines", 3.0, 180), ("less", 1.0, 100)]
CONFIG = f"""[server]
host = "127.0.0.1"
port = 0
[autoscale]
wait_ms = {WAIT_MS}
tpot_ms = {TPOT_MS}
[fleet]
prefill = {{prefill}}
decode = {{decode}}
"""
PROMETHEUS = """global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: pd-proxy
    static_configs: [{{targets: ["{gateway}"]}}]
"""
# After this many seconds the gauge is looked at again.
STEP = 10
GAUGES = ["pd_proxy_work_seconds", "pd_proxy_saturation", "pd_proxy_engines_needed", "pd_proxy_engines"]


def needed(busy, seconds):
    """The least number of engines by the formula of docs/autoscaling.md, for prompts that all take so many seconds."""
    residual = seconds / 2
    for engines in range(math.floor(busy) + 1, 1000):
        # Erlang's probability of waiting, by that of loss.
        loss = 1.0
        for at in range(1, engines + 1):
            loss = busy * loss / (at + busy * loss)
        waits = loss / (1 - busy / engines * (1 - loss))
        if waits * math.exp(-(engines - busy) * WAIT_MS / 1000 / residual) <= 0.1:
            return engines
    raise ValueError(busy)


class Rig:
    """All processes, and the clients."""

    def __init__(self, program, prometheus, directory):
        self.program, self.directory, self.processes, self.threads, self.statuses, self.sent = program, pathlib.Path(directory), [], [], [], []
        try:
            self.start(prometheus)
        except BaseException:
            self.stop()
            raise

    def start(self, prometheus):
        engines = {role: [self.engine(role) for _ in range(count)] for role, count in (("prefill", PREFILLERS), ("decode", DECODERS))}
        (self.directory / "gateway.toml").write_text(CONFIG.format(**{role: json.dumps(all_of) for role, all_of in engines.items()}))
        (self.gateway,) = self.run("gateway", self.program, "--config", "gateway.toml").wait_for(r"listening on http://([0-9.:]+)")
        (self.directory / "prometheus.yml").write_text(PROMETHEUS.format(gateway=self.gateway))
        self.prometheus = f"127.0.0.1:{free_port()}"
        self.run("prometheus", prometheus, "--config.file=prometheus.yml", f"--web.listen-address={self.prometheus}", "--storage.tsdb.path=data")
        wait("Prometheus to start", self.ready)
        wait("Prometheus to know the gateway", lambda: self.query("query", query="pd_proxy_engines"))

    def run(self, name, *command):
        self.processes.append(Process(self.directory, f"{name}-{len(self.processes)}", [str(word) for word in command]))
        return self.processes[-1]

    def engine(self, role):
        # Twelve streams make a decoder's step 50 ms long.
        speeds = ["--prefill-tokens-per-s", PREFILL_TOKENS_PER_S] if role == "prefill" else ["--tpot-ms", 20, "--slope-ms", 2.5]
        return self.run(role, self.program, "sim", "--role", role, "--port", 0, *speeds).wait_for(r"engine on http://([0-9.:]+)")[0]

    def ready(self):
        try:
            return "Ready" in get(self.prometheus, "/-/ready")
        except OSError:
            return False

    def query(self, path, **query):
        return json.loads(get(self.prometheus, f"/api/v1/{path}", **query))["data"]["result"]

    def now(self, gauge, role="prefill"):
        (series,) = self.query("query", query=f'{gauge}{{role="{role}"}}')
        return float(series["value"][1])

    def body(self, number):
        return {"model": "sim", "prompt": f"client {number} " + PROMPT, "max_tokens": ANSWER_TOKENS, "stream": True}

    def load(self, per_s, seconds):
        """Requests at random times, each by a client of its own."""
        def send(number):
            self.statuses.append(ask(self.gateway, self.body(number), seconds=300))
        end = time.monotonic() + seconds
        while (pause := random.expovariate(per_s)) + time.monotonic() < end:
            time.sleep(pause)
            self.sent.append(time.monotonic())
            self.threads.append(threading.Thread(target=send, args=(len(self.threads),), daemon=True))
            self.threads[-1].start()
        time.sleep(max(0, end - time.monotonic()))

    def rate(self):
        """Requests per second of the last minute."""
        return sum(at > time.monotonic() - 60 for at in self.sent) / 60

    def follow(self):
        """Adds the prefillers that the gauge names beyond those that are there, as an autoscaler does."""
        more = [self.engine("prefill") for _ in range(int(self.now("pd_proxy_engines_needed") - self.now("pd_proxy_engines")))]
        if more and ask(self.gateway, {"type": "prefill", "instances": more}, path="/instances/add") != 200:
            raise SystemExit("no prefiller can be added")

    def stop(self):
        for process in reversed(self.processes):
            process.end(signal.SIGKILL)


def play(rig):
    """All phases: when each began, and the gauges of prefillers at its end."""
    begun, ended = [], {}
    for name, per_s, seconds in PHASES:
        follows = name == "more engines"
        begun.append((time.time(), "prefillers are added" if follows else f"{per_s:g} request{'s' * (per_s != 1)}/s"))
        for _ in range(seconds // STEP):
            if follows:
                rig.follow()
            rig.load(per_s, STEP)
        ended[name] = {gauge: rig.now(gauge) for gauge in GAUGES} | {"requests/s": rig.rate()}
        print(f"  {name}, {per_s:g} requests/s: " + ", ".join(f"{gauge.removeprefix('pd_proxy_')} {value:.2f}" for gauge, value in ended[name].items()), flush=True)
    return begun, ended


def judge(ended, seconds):
    """What is wrong with the gauges. `seconds`: what a prefiller takes for one prompt."""
    def of(name, gauge):
        return ended[name][f"pd_proxy_{gauge}"]
    for name in ended:
        expected = needed(ended[name]["requests/s"] * seconds, seconds)
        if abs(of(name, "engines_needed") - expected) > 1:
            yield f"{name}: {of(name, 'engines_needed'):.0f} prefillers are needed, by the formula {expected}"
        if (of(name, "saturation") > 1) != (name == "too much"):
            yield f"{name}: saturation {of(name, 'saturation'):.2f}"
    if of("too much", "work_seconds") < 10 * max(1, of("little", "work_seconds")):
        yield f"too much: the work that waits is {of('too much', 'work_seconds'):.1f} s"
    if of("more engines", "work_seconds") > of("too much", "work_seconds") / 2:
        yield f"more engines: the work that waits is {of('more engines', 'work_seconds'):.1f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--program", "--prometheus"):
        parser.add_argument(name, required=True)
    parser.add_argument("--plot", type=pathlib.Path, help="a file for the drawing")
    options = parser.parse_args()
    # So that the rig is taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    random.seed(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        rig = Rig(pathlib.Path(options.program).resolve(), options.prometheus, directory)
        try:
            answer = ask_json(f"http://{rig.gateway}", "/v1/completions", rig.body(-1) | {"stream": False})
            seconds = answer["usage"]["prompt_tokens"] / PREFILL_TOKENS_PER_S
            begun, ended = play(rig)
            end = time.time()
            series = {gauge: rig.query("query_range", query=gauge, start=begun[0][0], end=end, step=2) for gauge in GAUGES}
            for thread in rig.threads:
                thread.join(60)
        finally:
            rig.stop()
    wrong = list(judge(ended, seconds))
    if refused := [status for status in rig.statuses if status != 200]:
        wrong.append(f"{len(refused)} of {len(rig.statuses)} requests got {sorted(set(refused))}")
    # Gauges that do not move, and those of another phase, are found.
    for name, changed in {"nothing moves": dict.fromkeys(ended, ended["little"]), "phases are swapped": dict(zip(ended, reversed(ended.values())))}.items():
        if not list(judge(changed, seconds)):
            wrong.append(f"nobody found the fault: {name}")
    if options.plot:
        options.plot.write_text(draw(series, begun, end))
    for why in wrong:
        print(f"BAD {why}")
    print(f"scaling: prompts of {seconds:.2f} s, {len(rig.statuses)} requests, {len(PHASES)} phases")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
