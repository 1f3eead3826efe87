#!/usr/bin/env python3
"""Proves config/compose, by which people look at a demo with its metrics and its board.

* `compose.yaml` is what Compose's schema allows; each file that it mounts is there; ports are open on loopback alone.
* What files say of each other is so: Prometheus looks at a service, and Grafana at that Prometheus, on ports where they listen.
* Prometheus' own tool takes its configuration with the rules beside it, as they are mounted.
* The program runs as `command` says, reached by another address than loopback, and a Prometheus with that configuration finds its load.

At the end the checks are given faults, which they must find. Started by compose.sh. Exit status 0: all as it should be.
"""
import argparse
import copy
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import yaml

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "config/compose"
# Ports on which the images listen that are not ours.
LISTENS = {"pd-proxy": 8000, "prometheus": 9090, "grafana": 3000}
CONFIG = "/etc/prometheus/prometheus.yml"


class Files:
    """The files, as they are read: in a form in which faults can be planted."""

    def __init__(self):
        self.compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
        self.prometheus = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        self.source = yaml.safe_load((FOLDER / "grafana/datasources.yaml").read_text())
        self.boards = yaml.safe_load((FOLDER / "grafana/dashboards.yaml").read_text())

    def service(self, name):
        return self.compose["services"][name]

    def mounts(self, name):
        """Paths in the container of a service, each with the file that is there."""
        parts = (volume.split(":") for volume in self.service(name).get("volumes", []))
        return {inside: FOLDER / outside for outside, inside, *_ in parts}


def schema(files):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as copied:
        yaml.safe_dump(files.compose, copied)
        copied.flush()
        tool = pathlib.Path(sys.executable).with_name("check-jsonschema")
        run = subprocess.run([tool, "--builtin-schema", "vendor.compose-spec", copied.name], capture_output=True, text=True, timeout=60)
        if run.returncode:
            yield f"Compose's schema: {run.stdout}{run.stderr}"


def agreement(files):
    """What the files say of each other."""
    services = set(files.compose["services"])
    if services != set(LISTENS):
        yield f"services are {sorted(services)}"
        return
    for name, port in LISTENS.items():
        if files.service(name)["ports"] != [f"127.0.0.1:{port}:{port}"]:
            yield f"{name} has ports {files.service(name)['ports']}"
        for inside, outside in files.mounts(name).items():
            if not outside.is_file():
                yield f"{name} mounts {outside}, which is not there, at {inside}"
    targets = [target for job in files.prometheus["scrape_configs"] for config in job["static_configs"] for target in config["targets"]]
    if targets != [f"pd-proxy:{LISTENS['pd-proxy']}"]:
        yield f"Prometheus looks at {targets}"
    if [job["job_name"] for job in files.prometheus["scrape_configs"]] != ["pd-proxy"]:
        yield "the job is not called as alerts and the board have it"
    one, = files.source["datasources"]
    url = urllib.parse.urlsplit(one["url"])
    if (url.hostname, url.port) != ("prometheus", LISTENS["prometheus"]) or not one["isDefault"]:
        yield f"Grafana's source is {one}"
    folder = pathlib.PurePosixPath(files.boards["providers"][0]["options"]["path"])
    board = next((inside for inside, outside in files.mounts("grafana").items() if outside.suffix == ".json"), None)
    if board is None or pathlib.PurePosixPath(board).parent != folder:
        yield f"the board is at {board}, Grafana reads {folder}"
    if files.service("grafana")["environment"].get("GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH") != board:
        yield "the home page is not the board"


def taken(files, promtool):
    """What Prometheus' own tool has against the configuration and the rules, as they are mounted."""
    with tempfile.TemporaryDirectory() as folder:
        written = laid_out(files, pathlib.Path(folder))
        run = subprocess.run([promtool, "check", "config", written], capture_output=True, text=True, timeout=60)
        if run.returncode:
            yield f"promtool: {run.stdout}{run.stderr}"


def laid_out(files, folder):
    """The configuration in a folder, with what is mounted beside it."""
    for inside, outside in files.mounts("prometheus").items():
        if inside != CONFIG and pathlib.PurePosixPath(inside).parent == pathlib.PurePosixPath(CONFIG).parent and outside.is_file():
            shutil.copy(outside, folder / pathlib.PurePosixPath(inside).name)
    written = folder / "prometheus.yml"
    written.write_text(yaml.safe_dump(files.prometheus))
    return written


def problems(files, promtool):
    return [*schema(files), *agreement(files), *taken(files, promtool)]


FAULTS = {
    "a key that Compose does not know": lambda it: it.service("grafana").update(port=3000),
    "a file that is not there": lambda it: it.service("prometheus")["volumes"].append("./rules.yml:/etc/prometheus/rules.yml:ro"),
    "a port that is open to the network": lambda it: it.service("pd-proxy").update(ports=["8000:8000"]),
    "a target without a service": lambda it: it.prometheus["scrape_configs"][0]["static_configs"][0].update(targets=["gateway:8000"]),
    "a job of another name": lambda it: it.prometheus["scrape_configs"][0].update(job_name="demo"),
    "rules that are not mounted": lambda it: it.prometheus.update(rule_files=["others.yml"]),
    "a source elsewhere": lambda it: it.source["datasources"][0].update(url="http://localhost:9090"),
    "a folder without the board": lambda it: it.boards["providers"][0]["options"].update(path="/boards"),
}


def plant(files, promtool):
    for name, fault in FAULTS.items():
        bad = copy.deepcopy(files)
        fault(bad)
        if not problems(bad, promtool):
            raise SystemExit(f"compose: not found: {name}")
    print(f"{len(FAULTS)} planted faults found")


def free_port():
    with socket.socket() as it:
        it.bind(("", 0))
        return it.getsockname()[1]


def own_address():
    """An address of this machine that is not loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
        try:
            it.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return it.getsockname()[0]


def asked(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def run(files, program, prometheus):
    """Runs the demo and Prometheus as the files say, at other ports, until the load is seen."""
    port, own, at = free_port(), free_port(), own_address()
    running = copy.deepcopy(files)
    running.prometheus["scrape_configs"][0]["static_configs"][0]["targets"] = [f"{at}:{port}"]
    running.prometheus["global"]["scrape_interval"] = "1s"
    query = urllib.parse.quote('sum(pd_proxy_requests_total{job="pd-proxy"}) > 3 and on() up{job="pd-proxy"} == 1')
    with tempfile.TemporaryDirectory() as folder:
        config = laid_out(running, pathlib.Path(folder))
        demo = subprocess.Popen([program, *files.service("pd-proxy")["command"], "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        watcher = subprocess.Popen([prometheus, f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{own}"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 120
            while time.monotonic() < end:
                try:
                    if asked(f"http://127.0.0.1:{own}/api/v1/query?query={query}")["data"]["result"]:
                        print(f"Prometheus sees the demo's load, reached at {at}")
                        return
                except (OSError, ValueError):
                    pass
                time.sleep(0.5)
            raise SystemExit("compose: Prometheus never saw the demo's load")
        finally:
            for it in (demo, watcher):
                it.terminate()
                it.wait(60)


def main():
    options = argparse.ArgumentParser()
    for name in ("program", "prometheus", "promtool"):
        options.add_argument(f"--{name}", required=True)
    options = options.parse_args()
    files = Files()
    if found := problems(files, options.promtool):
        raise SystemExit("compose: " + "\n".join(found))
    print("the files are as Compose's schema, Prometheus' tool and each other have it")
    run(files, options.program, options.prometheus)
    plant(files, options.promtool)


main()
