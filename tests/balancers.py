#!/usr/bin/env python3
"""Proves the recipes for nginx and HAProxy, config/nginx/pd-proxy.conf and config/haproxy/haproxy.cfg, with the real ones before two gateways.

* Events of a stream come one by one, as the engine makes them, and not when it has ended.
* A body of 40 MB goes through, one that is larger than limit.body_bytes is refused with 413.
* A prompt that takes seconds is waited for.
* A client that hangs up, while its prompt is computed and in its stream, is noticed by the gateway at once.
* Requests share connections to the gateways.
* One of two gateways ends under load, as Kubernetes ends it: no request fails.

At the end the recipes are given faults, which these checks must find. Started by balancers.sh. Exit status 0: all as it should be.
"""
import argparse
import http.client
import json
import pathlib
import re
import signal
import sys
import tempfile
import threading
import time

from processes import Process, ask, free_port, get, wait

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPES = {"nginx": ROOT / "config/nginx/pd-proxy.conf", "haproxy": ROOT / "config/haproxy/haproxy.cfg"}
# nginx's own frame, in which a file of conf.d lies.
FRAME = """daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/pd-proxy.conf;
}}
"""
# A prompt that is computed for some three seconds.
SLOW = "words that take their time " * 200
BODY = 40_000_000
TOKENS, TPOT_MS = 40, 40
# Within so many seconds a gateway knows that a client has left.
NOTICED = 1.5


class Rig:
    """Two gateways before one pair of engines, and balancers before them."""

    def __init__(self, options, folder):
        self.options, self.folder, self.processes, self.asked = options, pathlib.Path(folder), [], 0

    def run(self, name, *command):
        self.processes.append(Process(self.folder, name, [str(word) for word in command]))
        return self.processes[-1]

    def start(self):
        engines = {}
        for role, more in (("prefill", ("--prefill-tokens-per-s", 400)), ("decode", ("--tpot-ms", TPOT_MS))):
            process = self.run(role, self.options.program, "sim", "--role", role, "--port", 0, *more)
            (engines[role],) = process.wait_for(r"engine on http://([0-9.:]+)")
        self.engines = engines
        self.gateways = [self.gateway(f"gateway-{number}") for number in range(2)]

    def gateway(self, name):
        """A gateway: the process, where clients ask, and the operators' address."""
        config = self.folder / f"{name}.toml"
        config.write_text(f'[server]\nhost = "127.0.0.1"\nport = 0\nadmin_host = "127.0.0.1"\nadmin_port = 0\nlame_duck_ms = 6000\n'
                          f'[fleet]\nprefill = ["{self.engines["prefill"]}"]\ndecode = ["{self.engines["decode"]}"]\n')
        process = self.run(name, self.options.program, "--config", config.name)
        (at,) = process.wait_for(r"listening on http://([0-9.:]+)")
        (admin,) = process.wait_for(r"for operators on http://([0-9.:]+)")
        wait(f"{name} to be ready", lambda: ask(admin, path="/readyz") == 200)
        return process, at, admin

    def balancer(self, kind, edit=lambda text: text):
        """A balancer by its recipe, which knows both gateways: the process and its address."""
        port, text = free_port(), edit(RECIPES[kind].read_text())
        lines = {"nginx": "server {at} max_fails=1 fail_timeout=5s;", "haproxy": "server gateway{number} {at} port {admin}"}[kind]
        found = re.findall(r"^ +(?:# )?server (?:gateway\d )?127.*$", text, re.M)
        assert len(found) == 2, f"the recipe for {kind} has other servers than this expects: {found}"
        for number, (line, (_, at, admin)) in enumerate(zip(found, self.gateways)):
            text = text.replace(line, "    " + lines.format(at=at, number=number, admin=admin.rpartition(":")[2]))
        text, listens = re.subn(r"^( +listen |    bind :)8080", lambda match: f"{match[1]}{port}", text, flags=re.M)
        # Fewer open files than an operator's machine gives.
        text = text.replace("maxconn 16000", "maxconn 500")
        assert listens == 1, f"the recipe for {kind} listens elsewhere than this expects"
        config = self.folder / ("pd-proxy.conf" if kind == "nginx" else "haproxy.cfg")
        config.write_text(text)
        if kind == "nginx":
            (self.folder / "nginx.conf").write_text(FRAME.format(folder=self.folder))
            process = self.run(kind, self.options.nginx, "-p", self.folder, "-e", "stderr", "-c", self.folder / "nginx.conf")
        else:
            process = self.run(kind, self.options.haproxy, "-db", "-f", config)
        wait(f"{kind} to answer", lambda: ask(f"127.0.0.1:{port}", path="/v1/models") == 200)
        return process, f"127.0.0.1:{port}"

    def left(self):
        """Clients that hung up, as the gateways counted them."""
        texts = [get(admin, "/metrics") for process, _, admin in self.gateways if process.process.poll() is None]
        return sum(int(number) for text in texts for number in re.findall(r'^pd_proxy_requests_total{.*client_gone.*} (\d+)$', text, re.M))

    def connections(self):
        return sum(int(re.search(r"^pd_proxy_open_connections (\d+)", get(admin, "/metrics"), re.M)[1]) for _, _, admin in self.gateways)

    def stop(self):
        for process in reversed(self.processes):
            process.end(signal.SIGKILL)


def body(prompt="Hello", **more):
    return json.dumps({"model": "sim", "prompt": prompt, "max_tokens": TOKENS, "stream": True} | more)


def begin(address, text):
    """A request that is under way."""
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("POST", "/v1/completions", text, {"content-type": "application/json"})
    return connection


def unheard(rig):
    """A slow prompt of which no engine has anything in its cache."""
    rig.asked += 1
    return f"{rig.asked} times {SLOW}"


def streams(rig, address):
    """Events come when they are made."""
    connection, began, times = begin(address, body()), time.monotonic(), []
    answer = connection.getresponse()
    while line := answer.readline():
        if line.startswith(b"data: "):
            times.append(time.monotonic() - began)
    connection.close()
    apart = sum(later - sooner > TPOT_MS / 4000 for sooner, later in zip(times, times[1:]))
    if answer.status != 200 or len(times) < TOKENS or apart < TOKENS / 2:
        yield f"a stream with status {answer.status} came in {apart + 1} pieces, of {len(times)} events"


def large(rig, address):
    status = ask(address, body(stream=False, user="u" * BODY))
    if status != 200:
        yield f"a body of 40 MB gets {status}"
    # It may be refused before all of it was sent, so that the client can't go on: then the status is 0.
    status = ask(address, body(stream=False, user="u" * (65 << 20)))
    if status not in (413, 0):
        yield f"a body of 65 MiB gets {status}"


def slow(rig, address):
    began = time.monotonic()
    status = ask(address, body(unheard(rig), stream=False))
    if status != 200 or time.monotonic() - began < 2:
        yield f"a slow prompt gets {status} after {time.monotonic() - began:.1f} s"


def hang_ups(rig, address):
    """While the prompt is computed, and in the stream."""
    for where in ("prefill", "stream"):
        before = rig.left()
        connection = begin(address, body(unheard(rig)) if where == "prefill" else body(max_tokens=400))
        if where == "prefill":
            time.sleep(0.7)
            connection.sock.close()
        else:
            answer = connection.getresponse()
            answer.readline()
            answer.close()
        connection.close()
        end = time.monotonic() + NOTICED
        while rig.left() == before and time.monotonic() < end:
            time.sleep(0.05)
        if rig.left() == before:
            yield f"a client that hangs up while {where} is not noticed"
            # It ends by itself, before somebody else is blamed for it.
            time.sleep(4)


def shares(rig, address):
    """Many requests, few connections."""
    for _ in range(20):
        ask(address, body(max_tokens=1, stream=False))
    if (found := rig.connections()) > 14:
        yield f"{found} connections to the gateways after 20 requests, one after the other"


CHECKS = (streams, large, slow, hang_ups, shares)


def ends(rig, address):
    """One gateway ends while clients ask."""
    statuses, over = [], threading.Event()

    def client(number):
        for turn in range(10_000):
            if over.is_set():
                return
            statuses.append(ask(address, body(f"client {number} turn {turn}", max_tokens=4, stream=False)))
    clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for one in clients:
        one.start()
    time.sleep(2)
    process = rig.gateways[1][0]
    process.process.send_signal(signal.SIGTERM)
    process.process.wait(30)
    time.sleep(3)
    over.set()
    for one in clients:
        one.join()
    if len(statuses) < 40 or set(statuses) != {200}:
        yield f"while a gateway ended, {len(statuses)} requests got {sorted(set(statuses))}"


def replaced(old, new):
    def edit(text):
        assert old in text, old
        return text.replace(old, new)
    return edit


FAULTS = {
    "nginx": {
        "small bodies": (replaced("client_max_body_size 64m;", "client_max_body_size 8m;"), large),
        "little patience": (replaced("proxy_read_timeout 3600s;", "proxy_read_timeout 1s;"), slow),
        "clients that are not missed": (replaced("proxy_ignore_client_abort off;", "proxy_ignore_client_abort on;"), hang_ups),
    },
    "haproxy": {
        "little patience": (replaced("timeout server 1h", "timeout server 1s"), slow),
        "clients that are not missed": (replaced("    option abortonclose\n", ""), hang_ups),
    },
}


def judge(rig, kind):
    """What is wrong behind one balancer."""
    process, address = rig.balancer(kind)
    for check in (*CHECKS, ends):
        began = time.monotonic()
        found = list(check(rig, address))
        yield from (f"{kind}: {problem}" for problem in found)
        print(f"  {kind}: {check.__name__}: {'BAD' if found else 'fine'}, {time.monotonic() - began:.1f} s")
    process.end()
    # The next one has two again.
    rig.gateways[1] = rig.gateway(f"gateway-{kind}")
    for name, (edit, check) in FAULTS[kind].items():
        if check is None:
            continue
        process, address = rig.balancer(kind, edit)
        if not list(check(rig, address)):
            yield f"{kind}: nobody found the fault: {name}"
        process.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--program", "--nginx", "--haproxy"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    options.program = pathlib.Path(options.program).resolve()
    # So that the rig is taken down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wrong = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rig = Rig(options, folder)
        try:
            rig.start()
            for kind in RECIPES:
                wrong += judge(rig, kind)
        finally:
            rig.stop()
    for why in wrong:
        print(f"BAD {why}")
    print(f"balancers: {len(RECIPES)} recipes, {sum(check is not None for faults in FAULTS.values() for _, check in faults.values())} planted faults")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
