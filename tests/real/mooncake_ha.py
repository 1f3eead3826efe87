#!/usr/bin/env python3
"""Leaders of a real Mooncake pool die, under gateways that have both masters in their configuration.

mooncake_ha.sh runs it. Engines are simulated; etcd, the masters and the store's clients, which put exactly the keys of one
prompt there, are real. Requests go on all the time. Exit status 0: at every change of the leader no request failed or
took longer than the pool's deadline allows, the lookups came back by themselves, and found what the new leader was given.
"""
import argparse
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request

from proof import Serving

BLOCK = 16
TOKENS = list(range(100, 100 + 40 * BLOCK))
DEADLINE_MS = 200
SLACK_MS = 400  # a busy machine
WAIT_SECONDS = 60
QUIET_SECONDS = 3  # before a leader is killed
PAUSE_SECONDS = 0.05
# A pool in trouble is left alone for so long at most, and then asked again.
REST_SECONDS = 15
ETCD, MASTERS = 23790, ((51031, 51041), (51032, 51042))
ENGINE = 51050
NAMES = ["hash.version=0.32.0", "hash.algo=sha256", "hash.seed=0", f"hash.block_tokens={BLOCK}"]
NAMES += ["key.preset=mooncake-store-0.30", "key.model=tiny"]


def fetch(url, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    return urllib.request.urlopen(request, timeout=10).read().decode()


def until(what, find):
    end = time.monotonic() + WAIT_SECONDS
    while not (found := find()):
        if time.monotonic() > end:
            sys.exit(f"never: {what}")
        time.sleep(0.05)
    return found


class Rig:
    """What is started, and what it said."""

    def __init__(self, run):
        self.run, self.processes = run, []

    def start(self, name, *command):
        with open(f"{self.run}/{name}.log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def end(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def health(number):
    try:
        return json.loads(fetch(f"http://127.0.0.1:{MASTERS[number][1]}/health"))
    except OSError:
        return {}


class Gateway(Serving):
    """In front of a simulated engine."""

    def __init__(self, rig, program, kind, engine):
        self.kind, self.asked = kind, 0
        rpcs, admins = ([f"127.0.0.1:{ports[i]}" for ports in MASTERS] for i in (0, 1))
        settings = ["prompt.tokens=engine", "prompt.verify=false", "log.format=json", f"pool.kind={kind}"]
        settings += [f"pool.deadline_ms={DEADLINE_MS}", "pool.fresh_ms=0"]
        if kind == "mooncake":
            settings += [f"pool.addresses={json.dumps(rpcs)}", f"pool.admins={json.dumps(admins)}"]
        else:
            settings += [f"pool.addresses={json.dumps(admins)}"]
        command = [program, "--host", "127.0.0.1", "--port", "0", "--prefill", engine, "--decode", engine]
        for setting in NAMES + settings:
            command += ["--set", setting]
        self.file = open(f"{rig.run}/gateway-{kind}.log", "w+", encoding="utf-8")
        self.process = subprocess.Popen(command, stdout=self.file, stderr=self.file)
        self.url = self.line(r"listening on (http://[0-9.:]+)")[1]
        self.line("blocks can be named")

    def ask(self):
        """Tokens that the pool has of the prompt, None while that is not known."""
        self.asked += 1
        name = f"asked-{self.asked}"
        body = {"model": "tiny", "max_tokens": 2, "prompt": TOKENS}
        fetch(self.url + "/v1/completions", body, {"x-request-id": name})
        line = self.line(rf'(?m)^\{{.*"message":"request","id":"{name}".*\}}$')[0]
        return json.loads(line).get("pooled_tokens")


class Watch:
    """Asks a gateway again and again: what it knew when, how long it took, what failed."""

    def __init__(self, gateway):
        self.gateway, self.seen, self.failures, self.over = gateway, [], [], threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.over.wait(PAUSE_SECONDS):
            began = time.monotonic()
            try:
                tokens = self.gateway.ask()
                self.seen.append((began, tokens, time.monotonic() - began))
            except (OSError, RuntimeError) as wrong:
                self.failures.append(str(wrong))

    def first(self, since, fits):
        """When an answer that began after `since` fitted for the first time."""
        return next((at for at, tokens, _ in list(self.seen) if at > since and fits(tokens)), None)

    def longest_ms(self, since, until_then):
        return max((took * 1000 for at, _, took in list(self.seen) if since <= at < until_then), default=0)

    def end(self):
        self.over.set()
        self.thread.join()


class Check:
    def __init__(self, rig, args, keys):
        self.rig, self.args, self.keys, self.fills, self.wrong, self.compared = rig, args, keys, 0, 0, 0

    def tell(self, name, wrong, text):
        self.compared += 1
        self.wrong += bool(wrong)
        print(f"{'WRONG' if wrong else 'ok'} {name}: {text}{''.join('; ' + w for w in wrong)}", flush=True)

    def master(self, number):
        rpc, admin = MASTERS[number]
        flags = [f"--etcd_endpoints=http://127.0.0.1:{ETCD}", "--rpc_address=127.0.0.1"]
        flags += [f"--rpc_port={rpc}", f"--metrics_port={admin}", "--metrics_host=127.0.0.1"]
        flags += ["--enable_metric_reporting=false"]
        return self.rig.start(f"master-{number}", self.args.master, "--enable_ha=true", *flags)

    def fill(self):
        """A client that finds the leader by etcd puts the keys there."""
        self.fills += 1
        ready = f"{self.rig.run}/ready-{self.fills}"
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mooncake_fill.py")
        what = [f"etcd://127.0.0.1:{ETCD}", ready, "127.0.0.2", f"@{self.keys}"]
        client = self.rig.start("fill", sys.executable, script, *what)
        until("keys are put", lambda: os.path.exists(ready) or client.poll() is not None)
        if client.poll() is not None:
            sys.exit(f"the pool can't be filled: see {self.rig.run}/fill.log")
        return client

    def found(self, gateways, when):
        for gateway in gateways:
            tokens = gateway.ask()
            wrong = [] if tokens == len(TOKENS) else [f"{len(TOKENS)} were put"]
            self.tell(f"{gateway.kind}, {when}", wrong, f"{tokens} tokens in the pool")

    def change(self, gateways, leads, follows, number):
        """The leader is killed; what the gateways notice until they know the next one's pool."""
        watches = [Watch(gateway) for gateway in gateways]
        began = time.monotonic()
        time.sleep(QUIET_SECONDS)
        leads.kill()
        leads.wait()
        killed = time.monotonic()
        until("the other one serves", lambda: health(number).get("service_ready"))
        serving = time.monotonic()
        for watch in watches:
            kind, lost = watch.gateway.kind, until("trouble is noticed", lambda: watch.first(killed, lambda t: t is None))
            back = until("the lookups are back", lambda: watch.first(lost, lambda t: t is not None))
            wrong, usual = watch.failures[:1], watch.longest_ms(began, killed)
            slowest = watch.longest_ms(killed, back)
            if back - serving > REST_SECONDS + SLACK_MS / 1000:
                wrong.append(f"it came back {back - serving:.1f} s after the new leader served")
            if slowest > usual + DEADLINE_MS + SLACK_MS:
                wrong.append(f"requests took {slowest:.0f} ms, {usual:.0f} before")
            text = f"trouble after {lost - killed:.1f} s, the next leader served after {serving - killed:.1f} s, "
            text += f"its pool was known after {back - killed:.1f} s; {len(watch.seen)} requests, {len(watch.failures)} failed, "
            text += f"the longest {slowest:.0f} ms ({usual:.0f} before)"
            self.tell(f"{kind}, master {1 - number} killed", wrong, text)
        for watch in watches:
            watch.end()
        if follows.poll() is not None:
            sys.exit("the master that leads now is gone")


def keys_of_prompt(args):
    command = [args.gateway, "keys", "--tokens", ",".join(map(str, TOKENS)), "--format", "json"]
    for name in NAMES:
        command += ["--set", name]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout)
    path = f"{args.run}/keys"
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(key for block in said["blocks"] for key in block["keys"]))
    return path


def checks(rig, args):
    check = Check(rig, args, keys_of_prompt(args))
    peer = "http://127.0.0.1:23800"
    urls = [f"http://127.0.0.1:{ETCD}"] * 2
    rig.start("etcd", args.etcd, "--data-dir", f"{args.run}/etcd", "--listen-client-urls", urls[0], "--advertise-client-urls",
              urls[1], "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}")
    first = check.master(0)
    until("the first master serves", lambda: health(0).get("service_ready"))
    second = check.master(1)
    until("the second one stands by", lambda: health(1).get("role") == "standby")
    engine = f"127.0.0.1:{ENGINE}"
    rig.start("engine", args.gateway, "sim", "--port", str(ENGINE), "--model", "tiny", "--connector", "pool",
              "--block-tokens", str(BLOCK), "--tpot-ms", "1", "--slope-ms", "0", "--prefill-tokens-per-s", "1000000")
    until("the engine answers", lambda: reaches(f"http://{engine}/v1/models"))
    client = check.fill()
    with Gateway(rig, args.gateway, "mooncake", engine) as rpc, Gateway(rig, args.gateway, "mooncake_http", engine) as http:
        gateways = (rpc, http)
        check.found(gateways, "filled")
        check.change(gateways, first, second, 1)
        client.kill()
        client = check.fill()
        check.found(gateways, "filled after the change")
        first = check.master(0)
        until("the first one stands by", lambda: health(0).get("role") == "standby")
        check.change(gateways, second, first, 0)
        client.kill()
        check.fill()
        check.found(gateways, "filled after the change back")
    return check


def reaches(url):
    try:
        return fetch(url)
    except OSError:
        return None


def main():
    parser = argparse.ArgumentParser()
    for flag in ("gateway", "etcd", "master", "run"):
        parser.add_argument(f"--{flag}", required=True)
    args = parser.parse_args()
    rig = Rig(args.run)
    try:
        check = checks(rig, args)
    finally:
        rig.end()
    print(f"{check.compared - check.wrong} of {check.compared} as it should be, 10 expected", flush=True)
    sys.exit(0 if check.wrong == 0 and check.compared == 10 else 1)


if __name__ == "__main__":
    main()
