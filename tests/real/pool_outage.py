"""The master of a pool fails under gateways that ask it: what their clients notice, and how the gateways come back.

Real engines fail with it: their own clients of the store wait for tens of seconds. What the gateway adds is measured
before a simulated engine, which asks no pool.
"""
import os
import signal
import subprocess
import threading
import time

OUTAGE_SECONDS = 10
ENOUGH = 20  # requests of a phase
STARVED_SECONDS = 60  # until there are so many, when engines take the cores
BACK_SECONDS = 20
PAUSE_SECONDS = 0.3  # between requests to the real engines
SLACK_MS = 100  # two cores, shared with engines


def prompt(*first):
    return {"prompt": [*first, *range(100, 170)]}


class Stopwatch:
    """Requests to gateways, each one after the other, timed by the client; by the phase they began in."""

    def __init__(self, gateways):
        self.phase = "before"
        self.failures = []
        self.over = threading.Event()
        self.times = {(gateway.kind, phase): [] for gateway in gateways for phase in ("before", "out")}
        self.threads = [threading.Thread(target=self.run, args=(gateway,)) for gateway in gateways]
        for thread in self.threads:
            thread.start()

    def run(self, gateway):
        count = int(time.time()) % 1000 * 1000
        while not self.over.is_set():
            count += 1
            phase, began = self.phase, time.monotonic()
            try:
                gateway.post(False, prompt(count % 2000 + 3, count // 2000 + 3))
            except OSError as wrong:
                self.failures.append(str(wrong))
            # Those that see a change are in neither phase.
            if phase == self.phase != "changing":
                self.times[gateway.kind, phase].append((time.monotonic() - began) * 1000)
            time.sleep(0.01)

    def enough(self, phase, seconds):
        """Waits for so long, and on for requests that tell something."""
        time.sleep(seconds)
        end = time.monotonic() + STARVED_SECONDS
        while time.monotonic() < end and any(len(t) < ENOUGH for (_, at), t in self.times.items() if at == phase):
            time.sleep(0.1)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def verdict(self, kind, deadline_ms):
        """In words, and what is wrong."""
        before, out = self.times[kind, "before"], self.times[kind, "out"]
        wrong = self.failures[:1]
        if len(before) < ENOUGH or len(out) < ENOUGH:
            return f"{len(before)} and {len(out)} requests", [*wrong, "too few to tell"]
        if max(out) > max(before) + deadline_ms + SLACK_MS:
            wrong.append(f"more than {deadline_ms} ms longer")
        mean = [sum(times) / len(times) for times in (before, out)]
        text = f"{len(before)} requests of {mean[0]:.0f} ms, at most {max(before):.0f}, before; "
        text += f"{len(out)} of {mean[1]:.0f} ms, at most {max(out):.0f}, in the outage; {len(self.failures)} failed"
        return text, wrong


class Load:
    """Requests at even pauses, however long they take."""

    def __init__(self, gateways):
        self.gateways = gateways
        self.failures, self.served, self.threads = [], 0, []
        self.over = threading.Event()
        self.begun = threading.Thread(target=self.run)
        self.begun.start()

    def run(self):
        while not self.over.wait(PAUSE_SECONDS):
            turn = len(self.threads)
            thread = threading.Thread(target=self.one, args=(self.gateways[turn % len(self.gateways)], turn))
            self.threads.append(thread)
            thread.start()

    def one(self, gateway, turn):
        try:
            gateway.post(False, prompt(5, turn + 3))
            self.served += 1
        except OSError as wrong:
            self.failures.append(str(wrong))

    def end(self):
        self.over.set()
        self.begun.join()
        for thread in self.threads:
            thread.join()


def change(gateway, before):
    """Lookups since `before`, by verdict."""
    now = gateway.verdicts()
    return {verdict: now[verdict] - before.get(verdict, 0) for verdict in now if now[verdict] != before.get(verdict, 0)}


def master(pool):
    with open(pool.args.pid, encoding="utf-8") as file:
        return int(file.read())


def observe(pool, sims, trouble, expected, end):
    """Times requests before and in a trouble; verdicts in it must hold `expected`."""
    watch = Stopwatch(sims)
    watch.enough("before", OUTAGE_SECONDS / 2)
    watch.phase = "changing"
    before = [gateway.verdicts() for gateway in sims]
    trouble()
    watch.phase = "out"
    watch.enough("out", OUTAGE_SECONDS)
    watch.phase = "changing"
    changes = [change(*one) for one in zip(sims, before)]
    end()
    watch.end()
    for gateway, found in zip(sims, changes):
        text, wrong = watch.verdict(gateway.kind, pool.deadline_ms)
        if not all(found.get(verdict) for verdict in expected):
            wrong.append(f"verdicts are not {' and '.join(expected)}")
        pool.tell(f"{gateway.kind}, {trouble.__name__}", wrong, f"{found}, {text}")


def stopped(pool, sims):
    """A master that takes questions and does not answer."""
    process = master(pool)

    def master_stopped():
        os.kill(process, signal.SIGSTOP)

    def goes_on():
        os.kill(process, signal.SIGCONT)

    observe(pool, sims, master_stopped, ("timed_out", "off"), goes_on)
    began = time.monotonic()
    for gateway in sims:
        recovers(pool, gateway, began, "master goes on")


def killed(pool, gateways, sims, stored):
    """A master that is gone under load and comes back empty: of `stored`, a prompt for each gateway, it has nothing."""
    before = [gateway.verdicts() for gateway in gateways]
    load = Load(gateways)

    def master_killed():
        os.kill(master(pool), signal.SIGKILL)

    def restart():
        for gateway, verdicts in zip(gateways, before):
            found = change(gateway, verdicts)
            wrong = [] if found.get("unreachable") else ["not unreachable"]
            pool.tell(f"{gateway.kind}, real engines, master killed", wrong, f"{found}")
        load.over.set()
        subprocess.run(pool.args.restart, shell=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    observe(pool, sims, master_killed, ("unreachable", "off"), restart)
    began = time.monotonic()
    for gateway, case in zip(gateways, stored):
        recovers(pool, gateway, began, "master is back", case)
    load.end()
    text = f"{load.served} of {len(load.threads)} served"
    pool.tell("real engines, master killed, requests", load.failures[:1], text)


def recovers(pool, gateway, began, what, stored=None):
    """By itself."""
    known, count, failures = gateway.verdicts()["answered"], 0, []
    while gateway.verdicts()["answered"] == known and time.monotonic() - began < BACK_SECONDS:
        count += 1
        try:
            gateway.post(False, prompt(9, count))
        except OSError as failure:
            failures.append(f"a request failed: {failure}")
        time.sleep(0.2)
    took = time.monotonic() - began
    wrong, text = failures[:1], f"known again after {took:.1f} s"
    if took >= BACK_SECONDS:
        wrong.append("not in time")
    if stored:
        name, chat, request = stored
        pooled = gateway.ask(chat, request)[1].get("pooled_tokens")
        text += f", of {name} it has {pooled}"
        if pooled != 0:
            wrong.append("but the keys are gone")
    pool.tell(f"{gateway.kind}, {what}", wrong, text)
