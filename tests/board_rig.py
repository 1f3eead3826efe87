"""What board.py looks at: a gateway that is well (the demo), one that is in every trouble that can be had without engines, and a
real Prometheus that scrapes them by the example configuration. Everything listens on the loopback."""
import json
import os
import pathlib
import re
import signal
import subprocess

from processes import Process, ask, free_port, get, wait

# Nobody listens here: ports below 1024 are not handed out.
CLOSED = "127.0.0.1:1"
FAILED = 'pd_proxy_requests_total{code=~"502|503"}'
KEYS = """[[key]]
name = "search"
sha256 = "{sha256}"
tokens_per_minute = 100000

[[key]]
name = "scarce"
sha256 = "{scarce}"
requests_inflight = 1
"""
TROUBLE = """[auth]
keys_file = "{keys}"
reload_ms = 200
[trace]
endpoint = "http://{closed}"
[share]
url = "redis://{closed}"
[fleets.main.fleet]
prefill = ["{prefiller}", "{closed}"]
decode = ["{decoder}"]
[fleets.main.prompt]
tokens = "engine"
[fleets.main.hash]
seed = "0"
[fleets.main.key]
preset = "mooncake-store-0.30"
[fleets.main.pool]
kind = "mooncake"
addresses = ["{closed}"]
[fleets.main.events]
listen = true
port = 2
replay_port = 3
[fleets.main.discovery]
file = "{engines}"
interval_ms = 500
[fleets.main.health]
probe_ms = 300
probe_timeout_ms = 1000
[fleets.main.retry]
budget = 0.1
budget_floor_per_s = 1
resume = true
"""
# Engines of one fleet are away, and its decoders would be asked first; the others share a model. Other gateways would hear of both.
FLEETS = """[auth]
keys_file = "{keys}"
[share]
url = "redis://{store}"
[models]
targets = ["shared=one:50 two:50"]
fallback = ["gone=one"]
[fleets.one.fleet]
prefill = ["{one[0]}"]
decode = ["{one[1]}"]
model = "one"
[fleets.two.fleet]
prefill = ["{two[0]}"]
decode = ["{two[1]}"]
model = "two"
[fleets.away.fleet]
prefill = ["{closed}"]
decode = ["127.0.0.1:2"]
model = "gone"
[fleets.away.dialect]
name = "layerwise"
callback_url = "http://{closed}"
"""


def prompt(text, **more):
    return {"model": "sim", "prompt": text * 20, "max_tokens": 8, **more}


class Rig:
    """Everything that runs. `healthy`, `troubled` and `fleets` are addresses of gateways, `prometheus` that of Prometheus."""

    def __init__(self, program, prometheus, config, directory):
        self.program, self.directory, self.processes = program, pathlib.Path(directory), []
        try:
            self.start(prometheus, config)
        except BaseException:
            self.stop()
            raise

    def run(self, name, *command):
        self.processes.append(Process(self.directory, name, [str(word) for word in command]))
        return self.processes[-1]

    def gateway(self, name, *arguments):
        return self.run(name, self.program, *arguments)

    def engine(self, role, port, *arguments):
        """A simulated engine, and where it listens."""
        engine = self.gateway(f"{role}-{len(self.processes)}", "sim", "--role", role, "--port", port, *arguments)
        return engine, engine.wait_for(r"engine on http://([0-9.:]+)")[0]

    def start(self, prometheus, config):
        demo = self.gateway("demo", "demo", "--port", 0, "--tokens-per-s", 500, "--log-level", "warning")
        _, prefiller = self.engine("prefill", 0)
        decoder, decodes = self.engine("decode", 0, "--tpot-ms", 30)
        self.decoder = (decoder, decodes)
        files = {name: self.directory / f"{name}" for name in ("keys", "engines")}
        self.keys = {}
        for name in ("good", "scarce"):
            made = subprocess.run([self.program, "api-key", "new", "--name", name], capture_output=True, text=True, check=True)
            (secret,) = re.findall(r"sk-\S+", made.stderr + made.stdout)[:1]
            (digest,) = re.findall(r'sha256 = "([^"]+)"', made.stdout)
            self.keys[name] = (secret, digest)
        self.key_file = files["keys"]
        keys = KEYS.format(sha256=self.keys["good"][1], scarce=self.keys["scarce"][1])
        self.key_file.write_text(keys)
        self.engine_file = files["engines"]
        self.engine_file.write_text(f"decode {decodes}\n")
        self.trouble_file = self.directory / "trouble.toml"
        self.trouble_file.write_text(TROUBLE.format(
            prefiller=prefiller, decoder=decodes, closed=CLOSED, keys=files["keys"], engines=files["engines"]))
        self.trouble = self.gateway("troubled", "--host", "127.0.0.1", "--port", 0, "--config", self.trouble_file)
        fleets = self.start_fleets(keys)
        (self.fleets,) = fleets.wait_for(r"listening\S* .*?([0-9.]+:[0-9]+)")
        (self.healthy,) = demo.wait_for(r"on http://([0-9.:]+)")
        (self.troubled,) = self.trouble.wait_for(r"listening\S* .*?([0-9.]+:[0-9]+)")
        self.start_prometheus(prometheus, config)

    def start_fleets(self, keys):
        """A gateway with several fleets, and a store that it shares with no other one."""
        sides = {model: [self.engine(role, 0, "--model", model)[1] for role in ("prefill", "decode")] for model in ("one", "two")}
        store = free_port()
        self.run("store", "redis-server", "--bind", "127.0.0.1", "--port", store, "--save", "", "--dir", self.directory).wait_for("(Ready to accept)")
        files = {name: self.directory / f"fleets-{name}" for name in ("keys", "toml")}
        files["keys"].write_text(keys)
        files["toml"].write_text(FLEETS.format(closed=CLOSED, store=f"127.0.0.1:{store}", keys=files["keys"], **sides))
        return self.gateway("fleets", "--host", "127.0.0.1", "--port", 0, "--config", files["toml"])

    def start_prometheus(self, program, config):
        """With the example configuration: other targets, and a second for each interval."""
        text = pathlib.Path(config, "prometheus.yml").read_text()
        text, targets = re.subn(r'\["localhost:8000"\]', json.dumps([self.healthy, self.troubled, self.fleets]), text)
        text, intervals = re.subn(r"_interval: 15s", "_interval: 1s", text)
        assert (targets, intervals) == (1, 2), "prometheus.yml has other targets or intervals than this expects"
        (self.directory / "prometheus.yml").write_text(text)
        (self.directory / "alerts.yml").write_text(pathlib.Path(config, "alerts.yml").read_text())
        self.prometheus = f"127.0.0.1:{free_port()}"
        self.run("prometheus", program, f"--config.file={self.directory}/prometheus.yml", f"--web.listen-address={self.prometheus}",
                 f"--storage.tsdb.path={self.directory}/data")
        wait("Prometheus to see the gateways", lambda: self.value("sum(up)") == 3)

    def query(self, expression):
        """Prometheus's answer, an error included."""
        try:
            return json.loads(get(self.prometheus, "/api/v1/query", query=expression))
        except (OSError, ValueError) as e:
            return {"status": "error", "error": str(e)}

    def value(self, expression):
        answer = self.query(expression)
        result = answer.get("data", {}).get("result", [])
        return float(result[0]["value"][1]) if result else None

    def traffic(self):
        """What the healthy gateway answers well, or refuses as it should; then one trouble after another for the other one."""
        # Each prompt twice: engines find the second in their caches. Not 20 times within a second, for which the pool's answer that it
        # has nothing is remembered: the gateway then thinks that the pool knows nothing.
        for turn in range(6):
            assert ask(self.healthy, prompt(f"question {turn} ")) == 200
            assert ask(self.healthy, prompt(f"question {turn} ", stream=True)) == 200
        assert ask(self.healthy, prompt("beam", use_beam_search=True, n=2)) == 200
        assert ask(self.healthy, '{"model') == 400
        assert ask(self.healthy, prompt("x") | {"model": "other"}) == 404
        assert ask(self.healthy, "", path="/nowhere") == 404
        assert ask(self.healthy, {"model": "sim", "prompt": "tokens"}, path="/tokenize") == 200
        good = self.keys["good"][0]
        for model, more in [("shared", {})] * 8 + [("gone", {}), ("one", {"use_beam_search": True, "n": 2})]:
            assert ask(self.fleets, prompt("shared ", **more) | {"model": model}, good) == 200, model
        wait("budgets to be divided", lambda: self.value("pd_proxy_share_gateways"))
        self.distress()

    def distress(self):
        good, scarce = self.keys["good"][0], self.keys["scarce"][0]
        # One prefiller is closed from the start, the pool too, and nobody publishes events.
        for turn in range(4):
            assert ask(self.troubled, prompt(f"turn {turn} "), good) == 200
        assert ask(self.troubled, prompt("x")) == 401
        assert ask(self.troubled, prompt("x"), "sk-unknown") == 401
        # The second request of a key that may have one.
        answers = []
        ask(self.troubled, prompt("long ", stream=True, max_tokens=40), scarce,
            after_events=(2, lambda: answers.append(ask(self.troubled, prompt("x"), scarce))))
        assert answers == [429], answers
        # The decoder is killed under a stream, comes back, and is killed for good.
        decoder, at = self.decoder
        ask(self.troubled, prompt("long ", stream=True, max_tokens=200), good, after_events=(10, lambda: decoder.end(signal.SIGKILL)))
        decoder, again = self.engine("decode", at.rpartition(":")[2])
        assert again == at
        wait("the restart to be noticed", lambda: self.value("sum(pd_proxy_engine_restarts_total)"))
        wait("the decoder to be back", lambda: ask(self.troubled, prompt("back "), good) == 200)
        decoder.end(signal.SIGKILL)
        # A rate does not see what a series begins with.
        for turn in range(3):
            for question in range(8):
                assert ask(self.troubled, prompt(f"in vain {question} "), good) in (502, 503)
            wait("the failures to be scraped", lambda: (self.value(f'sum({FAILED})') or 0) >= 8 * (turn + 1))
        self.engine_file.write_text("what is this\n")
        self.key_file.write_text("broken [[")
        self.trouble_file.write_text("broken [[")
        os.kill(self.trouble.process.pid, signal.SIGHUP)
        wait("everything to be noticed", lambda: all(self.value(f"sum({name})") for name in (
            'pd_proxy_config_reloads_total{outcome="refused"}', 'pd_proxy_key_file_readings_total{outcome="broken"}',
            'pd_proxy_discovery_total{outcome="failed"}', 'pd_proxy_handoffs_total{outcome="expired"}')))

    def stop(self):
        for process in reversed(self.processes):
            process.end()
