"""A real Redis or Valkey, simulated engines, and gateways that share them: what the scripts beside this file have in common.

PD_PROXY names the program; REDIS_SERVER another server than redis-server or valkey-server; SHARE_PORT the first of a hundred ports.
"""
import asyncio
import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request

PROGRAM = os.environ.get("PD_PROXY", "target/release/pd-proxy")
SERVER = os.environ.get("REDIS_SERVER") or shutil.which("valkey-server") or shutil.which("redis-server")
# Of the first port of a rig: where its prefillers, its decoders and its gateways begin.
PREFILLERS_AT, DECODERS_AT, GATEWAYS_AT = 10, 30, 50


def until(what, holds, seconds=60):
    """Waits until `holds()`, which may fail to reach somebody before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if holds():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"it never came to this: {what}")


class Rig:
    """Processes and their logs, until the end of a `with`. `key` is sent with all requests."""

    def __init__(self, port, key=None):
        if SERVER is None:
            print("no redis-server and no valkey-server")
            raise SystemExit(77)
        self.port = int(os.environ.get("SHARE_PORT", port))
        self.key = key
        self.url = f"redis://127.0.0.1:{self.port}"
        self.folder = tempfile.mkdtemp()
        # Where engines are asked, and those gateways that are in a network namespace: its name, its address, and the store from there.
        self.engines_at, self.inside = "127.0.0.1", {}
        self.running = []

    def __enter__(self):
        self.store = self._server()
        until("the store answers", lambda: "PONG" in self.tell("PING"))
        return self

    def __exit__(self, *_):
        for it in self.running:
            it.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *command, **more):
        log = open(os.path.join(self.folder, f"log{len(self.running)}"), "w")
        self.running.append(subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, **more))
        return self.running[-1]

    def _server(self):
        return self.start(SERVER, "--port", self.port, "--save", "", "--appendonly", "no", "--dir", self.folder)

    def kill_store(self, once_down=lambda: None):
        """Kills the store, and starts an empty one two seconds later."""
        self.store.kill()
        self.store.wait()
        once_down()
        time.sleep(2)
        self.store = self._server()

    def cluster(self, masters=3):
        """A cluster of masters, and a replica of that which keeps the gateways' names; the port of that one."""
        ports = [self.port + 1 + nth for nth in range(masters + 1)]
        for port in ports:
            self.start(SERVER, "--port", port, "--save", "", "--appendonly", "no", "--dir", self.folder, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
                       "--cluster-config-file", os.path.join(self.folder, f"nodes{port}"))
        for port in ports:
            until("a node answers", lambda: "PONG" in self.tell("PING", port=port))
        share = 16384 // masters
        for nth, port in enumerate(ports[:masters]):
            last = 16383 if nth == masters - 1 else (nth + 1) * share - 1
            self.tell("CLUSTER", "ADDSLOTSRANGE", str(nth * share), str(last), port=port)
        for port in ports[1:]:
            self.tell("CLUSTER", "MEET", "127.0.0.1", str(ports[0]), port=port)
        for port in ports:
            until("the nodes know each other", lambda: f"cluster_known_nodes:{masters + 1}" in self.tell("CLUSTER", "INFO", port=port))
        slot = int(self.tell("CLUSTER", "KEYSLOT", "{pd-proxy}", port=ports[0])[1:])
        keeper = ports[min(slot // share, masters - 1)]
        name = self.tell("CLUSTER", "MYID", port=keeper).split()[1]
        until("a node is a replica", lambda: "+OK" in self.tell("CLUSTER", "REPLICATE", name, port=ports[-1]))
        until("the replica follows", lambda: "master_link_status:up" in self.tell("INFO", "replication", port=ports[-1]))
        until("the cluster is well", lambda: "cluster_state:ok" in self.tell("CLUSTER", "INFO", port=ports[0]))
        return keeper

    def tell(self, *words, port=None):
        """Sends the store one command and returns the first line of the answer."""
        with socket.create_connection(("127.0.0.1", port or self.port), 5) as link:
            link.sendall(f"*{len(words)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in words))
            return link.recv(65536).decode(errors="replace")

    def engines(self, tokens_per_s, tpot_ms, prefillers=1, decoders=1, everywhere=False):
        host = ("--host", "0.0.0.0") if everywhere else ()
        self.roles = (("prefill", PREFILLERS_AT, prefillers), ("decode", DECODERS_AT, decoders))
        speeds = {"prefill": ("--prefill-tokens-per-s", tokens_per_s), "decode": ("--tpot-ms", tpot_ms)}
        for role, first, count in self.roles:
            for at in range(count):
                self.start(PROGRAM, "sim", "--role", role, "--port", self.port + first + at, *host, *speeds[role])

    def keys(self, limit):
        """A file with this rig's key, of which `limit` is a line."""
        path = os.path.join(self.folder, "keys.toml")
        with open(path, "w") as file:
            digest = hashlib.sha256(self.key.encode()).hexdigest()
            file.write(f'[[key]]\nname = "team"\nsha256 = "{digest}"\n{limit}\nadmin = true\n')
        return path

    def gateway(self, at, share=True, keys=None):
        name, address, url = self.inside.get(at, (None, "127.0.0.1", self.url))
        env = dict(os.environ, **({"PD_PROXY__SHARE__URL": url} if share else {}))
        within = ("ip", "netns", "exec", name) if name else ()
        flags = []
        for option, (_, first, count) in zip(("prefiller", "decoder"), self.roles):
            ports = [self.port + first + nth for nth in range(count)]
            flags += [f"--{option}-hosts", *[self.engines_at] * count, f"--{option}-ports", *ports]
        if keys:
            flags += ["--set", f"auth.keys_file={keys}"]
        return self.start(*within, PROGRAM, "--host", address, "--port", self.port + GATEWAYS_AT + at, *flags,
                          "--set", "health.probe_ms=0", "--log-level", "warning", env=env)

    def _headers(self):
        return {"x-api-key": self.key} if self.key else {}

    def _address(self, at):
        return self.inside.get(at, (None, "127.0.0.1"))[1]

    def ask(self, at, path):
        asked = urllib.request.Request(f"http://{self._address(at)}:{self.port + GATEWAYS_AT + at}{path}", headers=self._headers())
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return answer.read().decode()

    def metric(self, at, name):
        lines = [line.split() for line in self.ask(at, "/metrics").splitlines()]
        return next((float(line[1]) for line in lines if line and line[0] == name), None)

    async def post(self, at, path, body):
        """The connection on which a gateway answers this request."""
        reader, writer = await asyncio.open_connection(self._address(at), self.port + GATEWAYS_AT + at)
        body = json.dumps(body).encode()
        headers = {"host": "a", "content-type": "application/json", "connection": "close", "content-length": len(body), **self._headers()}
        writer.write(f"POST {path} HTTP/1.1\r\n".encode() + "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n" + body)
        return reader, writer


def end(gateways):
    for it in gateways:
        it.terminate()
    for it in gateways:
        it.wait()
