"""Runs a gateway by the manifests of config/kubernetes, before two simulated engines: what deploy.py can't tell by reading."""
import contextlib
import copy
import hashlib
import json
import pathlib
import signal
import subprocess
import tempfile
import time

from processes import Process, ask, get, wait

KEY, LATER_KEY = "sk-of-a-client-in-a-test", "sk-of-a-client-that-comes-later"
APPLIED = 'pd_proxy_config_reloads_total{outcome="applied"} 1'
LAME_DUCK_MS = 5_000
RELEASE_SECONDS = 10
ASK_SECONDS = 10
LISTENING = r"listening on http://(127\.0\.0\.1:\d+)"
OPERATORS = r"operators on http://(127\.0\.0\.1:\d+)"
COMPLETION = json.dumps({"model": "sim", "prompt": "Where is the capital of France? " * 20, "max_tokens": 4})


def status(address, path, body=None, key=None):
    """The status of an answer; 0 without one."""
    return ask(address, body, key, path, seconds=ASK_SECONDS)


class Volume:
    """A file as the kubelet mounts it: behind two links, of which one is replaced to change all files of a volume at once."""

    def __init__(self, folder, name, text):
        self.folder, self.name, self.text, self.versions = pathlib.Path(folder, name.replace(".", "-")), name, "", 0
        self.folder.mkdir()
        self.add(text)
        self.path = self.folder / name
        self.path.symlink_to(f"..data/{name}")

    def add(self, text):
        self.text += text
        self.versions += 1
        version = self.folder / f"..version-{self.versions}"
        version.mkdir()
        (version / self.name).write_text(self.text)
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self.folder / "..data")


def entry(name, key):
    return f'\n[[key]]\nname = "{name}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'


class Cluster:
    """What the manifests describe, as processes. Set anew is only what a pod has of its own: addresses, free ports, where files
    are, whom the engines' names mean, and a shorter time before the drain."""

    def __init__(self, program, files, folder, stack):
        self.container, self.pod = files.container, files.pod

        def start(name, *arguments):
            process = Process(folder, name, [program, *arguments])
            stack.callback(process.end)
            return process

        sims = [start(role, "sim", "--role", role, "--port", "0") for role in ["prefill", "decode"]]
        prefiller, decoder = (sim.wait_for(r"http://(127\.0\.0\.1:\d+)")[0] for sim in sims)
        self.config, self.keys = Volume(folder, "pd-proxy.toml", files.toml), Volume(folder, "keys.toml", files.keys + entry("test", KEY))
        sets = [f'auth.keys_file="{self.keys.path}"', f'discovery.prefill_dns=["{prefiller}"]', f'discovery.decode_dns=["{decoder}"]',
                f"server.lame_duck_ms={LAME_DUCK_MS}", "server.host=127.0.0.1", "server.port=0", "server.admin_host=127.0.0.1",
                "server.admin_port=0"]
        self.gateway = start("gateway", "--config", self.config.path, *(word for one in sets for word in ["--set", one]))
        self.addresses = {"http": self.gateway.wait_for(LISTENING)[0], "admin": self.gateway.wait_for(OPERATORS)[0]}

    def probes(self, container, expected):
        """What is wrong with the probes' answers. 200 is right, or what is expected."""
        for name in ["startupProbe", "livenessProbe", "readinessProbe"]:
            get = container[name]["httpGet"]
            got, wanted = status(self.addresses[get["port"]], get["path"]), expected.get(name, 200)
            if got != wanted:
                yield f"{name}: {get['path']} answers {got}, expected {wanted}"

    def serving(self):
        clients, operators = self.addresses["http"], self.addresses["admin"]
        metrics = self.pod["metadata"]["annotations"]["prometheus.io/path"]
        for what, wanted, got in [
            ("a request without a key", 401, status(clients, "/v1/completions", COMPLETION)),
            ("a request with a key", 200, status(clients, "/v1/completions", COMPLETION, KEY)),
            ("metrics for Prometheus", 200, status(operators, metrics)),
            ("metrics for clients", 404, status(clients, metrics)),
            ("engines for anybody", 401, status(operators, "/instances")),
        ]:
            if got != wanted:
                yield f"{what}: {got}, expected {wanted}"

    def following(self):
        """A ConfigMap and a Secret that are changed while the gateway runs. `wait` ends the rig where they are not followed."""
        before = status(self.addresses["http"], "/v1/completions", COMPLETION, LATER_KEY)
        self.config.add("\n[retry]\nattempts = 2\n")
        self.keys.add(entry("later", LATER_KEY))
        wait("a new key", lambda: status(self.addresses["http"], "/v1/completions", COMPLETION, LATER_KEY) == 200)
        wait("the new configuration", lambda: APPLIED in get(self.addresses["admin"], "/metrics"))
        if before != 401:
            yield f"a key that is not there yet: {before}, expected 401"

    def leaving(self, drain_ms):
        """SIGTERM: not ready at once, but serving, and gone in time."""
        self.gateway.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        ready = self.container["readinessProbe"]["httpGet"]
        wait("the gateway to say that it leaves", lambda: status(self.addresses[ready["port"]], ready["path"]) == 503)
        yield from self.probes(self.container, {"readinessProbe": 503})
        got = status(self.addresses["http"], "/v1/completions", COMPLETION, KEY)
        if time.monotonic() - began > LAME_DUCK_MS / 1_000:
            yield "the machine is too slow to look at what a gateway does before it drains"
        elif got != 200:
            yield f"a request to a gateway that is to end: {got}, expected 200"
        try:
            code = self.gateway.process.wait((LAME_DUCK_MS + drain_ms) / 1_000 + RELEASE_SECONDS)
        except subprocess.TimeoutExpired:
            code = "nothing, since it does not end"
        if code != 0:
            yield f"the gateway ends with {code}"


def problems(program, files, config):
    """All that is wrong with a gateway that runs by the files."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        cluster = Cluster(program, files, folder, stack)
        wait("the gateway to be ready", lambda: status(cluster.addresses["admin"], "/readyz") == 200)
        found = list(cluster.probes(cluster.container, {})) + list(cluster.serving()) + list(cluster.following())
        broken = copy.deepcopy(cluster.container)
        broken["livenessProbe"]["httpGet"]["path"] = "/helthz"
        if not any("helthz" in problem for problem in cluster.probes(broken, {})):
            found.append("the checks don't find a probe's wrong path")
        return found + list(cluster.leaving(config["server"]["drain_ms"]))
