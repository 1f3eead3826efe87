"""What alerts.py looks at: fleets that are well, and fleets with one trouble each, every one behind a gateway of its own. Everything listens on the
loopback."""
import itertools
import json
import os
import signal
import struct
import subprocess
import threading
import time

import zmq

from processes import Process, ask, free_port, wait

# Between requests of one client, seconds.
PAUSE = 0.25
GATEWAY = """[server]
host = "127.0.0.1"
port = 0
[fleet]
prefill = {prefill}
decode = {decode}
[health]
probe_ms = 300
probe_timeout_ms = 1000
rest_max_ms = 1000
[engine]
lease_ms = 1500
{more}
"""
NAMES = """[prompt]
tokens = "engine"
budget_ms = 1000
[hash]
seed = "0"
"""
# Of engines that have another one.
WRONG_SEED = NAMES.replace('seed = "0"', 'seed = "1"')
POOL = """[key]
preset = "mooncake-store-0.30"
[pool]
kind = "mooncake"
addresses = ["{pool}"]
admins = ["{admin}"]
deadline_ms = 200
"""
SHARE = """[share]
url = "redis://127.0.0.1:{port}"
"""
EVENTS = """[events]
listen = true
endpoints = {endpoints}
"""


class Publisher:
    """KV events as vLLM's ZmqEventPublisher sends them: a topic, a number, a batch without events; and its socket for what was missed."""

    def __init__(self):
        self.context, self.sent, self.over = zmq.Context(), 0, threading.Event()
        self.live, self.replay = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        self.ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self.live, self.replay)]
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    @staticmethod
    def message(number):
        # [time, []], in msgpack.
        return [struct.pack(">q", number), b"\x92\xcb" + struct.pack(">d", time.time()) + b"\x90"]

    def run(self):
        while not self.over.is_set():
            self.live.send_multipart([b"", *self.message(self.sent)])
            self.sent += 1
            if self.replay.poll(200):
                client, *_, first = self.replay.recv_multipart()
                for number in range(int.from_bytes(first, "big"), self.sent):
                    self.replay.send_multipart([client, b"", *self.message(number)])
                self.replay.send_multipart([client, b"", struct.pack(">q", -1), b""])
        for socket in (self.live, self.replay):
            socket.close(linger=0)
        self.context.term()

    def end(self, *_):
        self.over.set()
        self.thread.join()


class Site:
    """One gateway with its engines and clients. `victims` are engines by which a trouble is known."""

    def __init__(self, rig, name):
        self.rig, self.name, self.victims, self.statuses = rig, name, [], []
        self.prefill, self.decode, self.over, self.labels = [], [], threading.Event(), {}

    def engine(self, role, *flags, port=0, env=None):
        """A simulated engine: the process, and where it listens."""
        number = next(self.rig.numbers)
        process = self.rig.run(f"{self.name}-{role}-{number}", "sim", "--role", role, "--port", port, *flags, env=env)
        (address,) = process.wait_for(r"engine on http://([0-9.:]+)")
        if not port:
            (self.prefill if role == "prefill" else self.decode).append(address)
        return process, address

    def pair(self):
        self.engine("prefill")
        return self.engine("decode")

    def serve(self, more=""):
        self.config = self.rig.directory / f"{self.name}.toml"
        self.config.write_text(GATEWAY.format(prefill=json.dumps(self.prefill), decode=json.dumps(self.decode), more=more))
        self.gateway = self.rig.run(f"{self.name}-gateway", "--config", self.config.name)
        (self.address,) = self.gateway.wait_for(r"listening on http://([0-9.:]+)")

    def pool(self):
        """A Mooncake master, and its lines of the configuration. Nobody stores anything there, which it says itself: it is not for wrong names."""
        master = self.rig.run(f"{self.name}-pool", "sim", "mooncake", "--port", 0, "--admin-port", 0)
        address, admin = master.wait_for(r"master on ([0-9.:]+), admin http://([0-9.:]+)")
        return master, POOL.format(pool=address, admin=admin)

    def store(self):
        """A Redis, and its lines of the configuration. The site is a job of its own: rules count the gateways of a job."""
        self.labels, port = {"job": self.name}, free_port()
        store = Process(self.rig.directory, f"{self.name}-store", [
            "redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(self.rig.directory)])
        self.rig.processes.append(store)
        store.wait_for("(Ready to accept)")
        return store, SHARE.format(port=port)

    def publishers(self):
        """One for each prefiller, and their lines of the configuration."""
        made = [Publisher() for _ in self.prefill]
        self.rig.processes += made
        addresses = [" ".join(f"tcp://127.0.0.1:{port}" for port in one.ports) for one in made]
        return made, EVENTS.format(endpoints=json.dumps([f"{engine}={at}" for engine, at in zip(self.prefill, addresses)]))

    def clients(self, many=1, words=40, tokens=8, pause=PAUSE, key=None):
        """So many that ask again and again, streams and whole answers by turns. No prompt comes twice."""
        def run(number):
            for turn in itertools.count():
                if self.over.wait(pause):
                    return
                text = f"client {number} of {self.name} asks question {turn} " + "and says more " * words
                body = {"model": "sim", "prompt": text, "max_tokens": tokens, "stream": turn % 2 == 0}
                self.statuses.append(ask(self.address, body, key))
        for number in range(many):
            self.rig.threads.append(threading.Thread(target=run, args=(number,), daemon=True))
            self.rig.threads[-1].start()


class Rig:
    """All processes and threads."""

    def __init__(self, program, directory):
        self.program, self.directory = program, directory
        self.processes, self.threads, self.sites, self.numbers = [], [], {}, itertools.count()

    def run(self, name, *command, env=None):
        self.processes.append(Process(self.directory, name, [str(self.program), *map(str, command)], env=env))
        return self.processes[-1]

    def site(self, name):
        self.sites[name] = Site(self, name)
        return self.sites[name]

    def stop(self):
        for site in self.sites.values():
            site.over.set()
        for process in reversed(self.processes):
            process.end(signal.SIGKILL)


# Fleets that are well.

def plain(site):
    for role in ("prefill", "prefill", "decode", "decode"):
        site.engine(role)
    site.serve()
    site.clients(2)


def idle(site):
    site.pair()
    site.serve()


def pool(site):
    """The demo, whose engines share a pool."""
    demo = site.rig.run(site.name, "demo", "--port", 0, "--tokens-per-s", 500, "--traffic")
    (site.address,) = demo.wait_for(r"on http://([0-9.:]+)")


def events(site):
    for role in ("prefill", "prefill", "decode"):
        site.engine(role)
    _, lines = site.publishers()
    site.serve(NAMES + lines)
    site.clients()


# Fleets in trouble: each gives what plants it.

def decoder_killed(site):
    process, address = site.pair()
    site.engine("decode")
    site.serve()
    site.clients()
    site.victims = [address]
    return lambda: process.end(signal.SIGKILL)


def decoders_killed(site):
    site.engine("prefill")
    both = [site.engine("decode") for _ in range(2)]
    site.serve()
    site.clients()
    site.victims = [address for _, address in both]

    def plant():
        for process, _ in both:
            process.end(signal.SIGKILL)
    return plant


def nobody_listens(site):
    """From the beginning."""
    site.prefill, site.decode = [f"127.0.0.1:{free_port()}"], [f"127.0.0.1:{free_port()}"]
    site.victims = site.prefill + site.decode
    return lambda: (site.serve(), site.clients())


def back(site, process, address, role, *flags, env=None):
    """Ends an engine, and has another one take its place once that is noticed."""
    process.end(signal.SIGKILL)
    time.sleep(1.5)
    return site.engine(role, *flags, port=address.rpartition(":")[2], env=env)[0]


def decoder_restarts(site):
    """Four times."""
    process, address = site.pair()
    site.engine("decode")
    site.serve()
    site.clients()
    site.victims = [address]

    def plant():
        one = process
        for _ in range(4):
            one = back(site, one, address, "decode")
            time.sleep(1.5)
    return plant


def decoder_refuses(site):
    """It comes back with a key that nobody told the gateway."""
    process, address = site.pair()
    site.engine("decode")
    site.serve()
    site.clients(2, pause=0.1)
    site.victims = [address]

    return lambda: back(site, process, address, "decode", "--api-key-env", "SIM_KEY", env=os.environ | {"SIM_KEY": "another"})


def decoder_slow(site):
    """A slow decoder takes the place of the only one."""
    site.pair()
    site.serve()
    site.clients(3)
    before = list(site.decode)

    def plant():
        _, slow = site.engine("decode", "--tpot-ms", 300)
        for path, engines in (("/instances/add", [slow]), ("/instances/remove", before)):
            assert ask(site.address, {"type": "decode", "instances": engines}, path=path) == 200
    return plant


def no_room(site):
    site.pair()
    site.serve("[limit]\ninflight = 2\nqueue = 2\nqueue_ms = 2000\n[route]\nbatch_tokens = 1\n")
    site.clients(1)
    return lambda: site.clients(9, tokens=200, pause=0.02)


def store_killed(site):
    site.pair()
    store, more = site.store()
    site.serve(more)
    site.clients()
    return lambda: store.end(signal.SIGKILL)


def gateway_unknown(site):
    """One that shares the engines, and that Prometheus does not know."""
    site.pair()
    _, more = site.store()
    site.serve(more)
    site.clients()
    return lambda: site.rig.run(f"{site.name}-second", "--config", site.config.name)


def pool_killed(site):
    site.pair()
    master, lines = site.pool()
    site.serve(NAMES + lines)
    site.clients()
    return lambda: master.end(signal.SIGKILL)


def wrong_seed(site):
    """From the beginning: another gateway before the demo's engines, whose pool it asks by names that nobody has."""
    demo = site.rig.run(f"{site.name}-demo", "demo", "--port", 0, "--tokens-per-s", 500)
    prefill, decode, master, admin = demo.wait_for(r"prefillers ([^;]+); decoders ([^;]+);\n.* master on (\S+) \(admin http://([0-9.:]+)\)")
    site.prefill, site.decode = prefill.split(", "), decode.split(", ")
    return lambda: (site.serve(WRONG_SEED + POOL.format(pool=master, admin=admin)), site.clients(2))


def events_lost(site):
    site.engine("prefill")
    site.pair()
    made, lines = site.publishers()
    site.serve(NAMES + lines)
    site.clients()
    site.victims = site.prefill[:1]
    return made[0].end


def blocks_differ(site):
    """A prefiller comes back with another size of blocks than the one beside it."""
    site.engine("prefill")
    process, address = site.engine("prefill")
    site.engine("decode")
    _, lines = site.pool()
    site.serve(NAMES.replace("budget_ms", "verify_interval_ms = 500\nbudget_ms") + lines)
    site.victims = [address]
    return lambda: back(site, process, address, "prefill", "--block-tokens", 32)


def gateway_killed(site):
    site.pair()
    site.serve()
    return lambda: site.gateway.end(signal.SIGKILL)


def prefiller_removed(site):
    site.pair()
    site.serve()
    site.clients()
    return lambda: ask(site.address, {"type": "prefill", "instances": site.prefill}, path="/instances/remove")


def files_broken(site):
    """Keys, the configuration, the list of engines."""
    site.pair()
    made = subprocess.run([site.rig.program, "api-key", "new", "--name", "good"], capture_output=True, text=True, check=True)
    secret = next(word for word in (made.stderr + made.stdout).split() if word.startswith("sk-"))
    keys, engines = (site.rig.directory / f"{site.name}-{what}" for what in ("keys", "engines"))
    keys.write_text(made.stdout)
    engines.write_text(f"decode {site.decode[0]}\n")
    site.serve(f'[auth]\nkeys_file = "{keys}"\nreload_ms = 200\n[discovery]\nfile = "{engines}"\ninterval_ms = 500\n')
    site.clients(key=secret)

    def plant():
        for path in (keys, engines, site.config):
            path.write_text("broken [[")
        site.gateway.process.send_signal(signal.SIGHUP)
    return plant
