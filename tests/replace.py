#!/usr/bin/env python3
"""Replaces the gateway under load, again and again, and counts what clients notice of it: nothing, as it should be.

Simulated engines and gateways, all processes. `socket`: each gateway is passed the same listening sockets, as systemd passes them
(LISTEN_FDS). `port`: each binds a socket of its own with server.reuse_port. The next one is started, says by NOTIFY_SOCKET that it is ready,
and only then the last one gets SIGTERM. Requests with a connection each, requests over kept connections, and streams under way are judged by
what clients read. Exit status 0: nothing was refused and nothing broke.
"""
import argparse
import asyncio
import collections
import fcntl
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile

from processes import WAIT_SECONDS, Process, wait

# Streams are so slow that each outlives the gateway which it began at.
TPOT_MS = 20
STREAM_TOKENS = 150
UNDER_WAY_TOKENS = 5
LISTENS = r" on http://([0-9.]+:[0-9]+)"
OPERATORS = "operators"
FIRST_PASSED = 3
# Becomes the program, which has the sockets from 3 on and its own number in the variable (sd_listen_fds(3)).
PASSING = f"""
import os, sys
fds = [int(fd) for fd in sys.argv[1].split(",")]
for number, fd in enumerate(fds):
    os.dup2(fd, {FIRST_PASSED} + number)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


class Manager:
    """Stands for the service manager: keeps the sockets, starts gateways, and hears when they are ready."""

    def __init__(self, program, mode, folder, settings):
        self.program, self.mode, self.folder, self.settings = program, mode, folder, settings
        self.started, self.said = [], []
        self.ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ears.bind(f"{folder}/notify")
        self.ears.settimeout(WAIT_SECONDS)
        self.engines = [self.engine(role) for role in ("prefill", "prefill", "decode", "decode")]
        self.sockets = [socket.create_server(("127.0.0.1", 0), backlog=4096) for _ in range(2)]
        self.clients, self.operators = (it.getsockname() for it in self.sockets)
        if mode == "port":
            # The numbers alone: each gateway binds them itself.
            for it in self.sockets:
                it.close()

    def engine(self, role):
        command = [self.program, "sim", "--port", "0", "--role", role, "--tpot-ms", str(TPOT_MS), "--slope-ms", "0", "--kv-blocks", "65536"]
        process = Process(self.folder, f"engine-{len(self.started)}", command)
        self.started.append(process)
        (address,) = process.wait_for(LISTENS)
        return f"--{role}", f"http://{address}"

    def gateway(self):
        """The next gateway, which is ready."""
        settings = ["log.level=info", f"server.admin_host={self.operators[0]}", f"server.admin_port={self.operators[1]}", *self.settings]
        command = [self.program, "--host", self.clients[0], "--port", str(self.clients[1]), *(word for engine in self.engines for word in engine)]
        env, fds = dict(os.environ, NOTIFY_SOCKET=f"{self.folder}/notify"), []
        if self.mode == "socket":
            # Out of the way of the numbers that they are to have.
            fds = [fcntl.fcntl(it.fileno(), fcntl.F_DUPFD, 100) for it in self.sockets]
            command = [sys.executable, "-c", PASSING, ",".join(map(str, fds)), *command]
            env |= {"LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": f"clients:{OPERATORS}"}
        else:
            settings.append("server.reuse_port=true")
        for setting in settings:
            command += ["--set", setting]
        process = Process(self.folder, f"gateway-{len(self.started)}", command, env, fds)
        self.started.append(process)
        for fd in fds:
            os.close(fd)
        self.hear(b"READY=1", process)
        return process

    def hear(self, word, gateway):
        """What a gateway tells its manager."""
        try:
            told = self.ears.recv(64)
        except TimeoutError:
            told = b"nothing"
        if told != word:
            raise SystemExit(f"{told} instead of {word}:\n{gateway.said()}")

    def replace(self, old):
        """Starts the next one, ends the last one, and waits until that accepts no more."""
        new = self.gateway()
        old.process.terminate()
        self.hear(b"STOPPING=1", old)
        return new

    def end(self):
        for process in self.started:
            process.end(signal.SIGKILL)
        for it in [self.ears, *self.sockets]:
            it.close()


class Broken(Exception):
    """An answer that is not whole."""


async def exchange(reader, writer, body, kept):
    """Asks; the status, the lines of the answer's body as they come, and at its end if the connection stays."""
    text = json.dumps({"model": "sim"} | body).encode()
    connection = "" if kept else "connection: close\r\n"
    writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\n{connection}content-type: application/json\r\n"
                 f"content-length: {len(text)}\r\n\r\n".encode() + text)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if not head.startswith("http/1.1 200 "):
        raise Broken(f"{head.splitlines()[0]}")
    return head


async def whole_body(reader, head):
    for line in head.splitlines():
        if line.startswith("content-length:"):
            return await reader.readexactly(int(line.split(":")[1]))
    return b"".join([piece async for piece in pieces(reader)])


async def pieces(reader):
    """Of a chunked body, up to its end."""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)


class Load:
    """Clients, and what they noticed."""

    def __init__(self, address, requests):
        self.address, self.left, self.number = address, requests, 0
        self.seen, self.served, self.milestones = collections.Counter(), asyncio.Condition(), 0

    async def done(self, what):
        async with self.served:
            self.seen[what] += 1
            self.served.notify_all()

    async def until(self, count):
        async with self.served:
            await self.served.wait_for(lambda: sum(self.seen.values()) >= count)

    async def client(self, kept):
        """Asks one request after the other, over a connection that is kept as long as the gateway keeps it, or each over a new one."""
        connection = None
        while self.left > 0:
            self.left, self.number = self.left - 1, self.number + 1
            try:
                if connection is None:
                    connection = await asyncio.open_connection(*self.address)
            except OSError as error:
                await self.done(f"refused: {error}")
                continue
            reader, writer = connection
            try:
                head = await exchange(reader, writer, {"prompt": f"Request {self.number}.", "max_tokens": 2}, kept)
                answer = json.loads(await whole_body(reader, head))
                if answer["usage"]["completion_tokens"] != 2:
                    raise Broken(f"{answer}")
                stays = kept and "connection: close" not in head
                await self.done("served")
            except (OSError, EOFError, ValueError, KeyError, Broken) as error:
                stays = False
                await self.done(f"broken{' on a kept connection' if kept else ''}: {type(error).__name__} {error}")
            if not stays:
                writer.close()
                connection = None

    async def stream(self, number, under_way):
        try:
            reader, writer = await asyncio.open_connection(*self.address)
        except OSError as error:
            under_way.release()
            return f"refused: {error}"
        text, events, ids, end, usage = [], 0, set(), "no end", None
        try:
            body = {"prompt": f"Stream {number}. " * 8, "max_tokens": STREAM_TOKENS, "stream": True, "stream_options": {"include_usage": True}}
            await exchange(reader, writer, body, kept=True)
            rest = b""
            async for piece in pieces(reader):
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(lambda line: line.startswith(b"data: "), lines):
                    if line == b"data: [DONE]":
                        end = "whole"
                        continue
                    event = json.loads(line[6:])
                    ids.add(event["id"])
                    usage = event.get("usage") or usage
                    text += [choice["text"] for choice in event["choices"]]
                    events += 1
                    if events == UNDER_WAY_TOKENS:
                        under_way.release()
            if end == "whole" and (len(ids) != 1 or usage["completion_tokens"] != STREAM_TOKENS):
                end = f"{len(ids)} ids, usage {usage}"
            return end
        except (OSError, EOFError, ValueError, KeyError, Broken) as error:
            if events < UNDER_WAY_TOKENS:
                under_way.release()
            return f"broken: {type(error).__name__} {error}"
        finally:
            writer.close()


async def play(manager, options):
    load = Load(manager.clients, options.requests)
    gateways = [await asyncio.to_thread(manager.gateway)]
    clients = [asyncio.create_task(load.client(kept=number % 2 == 0)) for number in range(options.clients)]
    streams, each = [], options.streams // options.restarts
    for restart in range(options.restarts):
        await load.until((restart + 1) * options.requests // (options.restarts + 1))
        under_way = asyncio.Semaphore(0)
        streams += [asyncio.create_task(load.stream(len(streams) + number, under_way)) for number in range(each)]
        for _ in range(each):
            await asyncio.wait_for(under_way.acquire(), WAIT_SECONDS)
        gateways.append(await asyncio.to_thread(manager.replace, gateways[-1]))
    ends = collections.Counter(await asyncio.wait_for(asyncio.gather(*streams), 10 * WAIT_SECONDS))
    await asyncio.wait_for(asyncio.gather(*clients), 10 * WAIT_SECONDS)
    for gateway in gateways[:-1]:
        await asyncio.to_thread(wait, "an old gateway to end", lambda gateway=gateway: gateway.process.poll() is not None)
    gateways[-1].process.terminate()
    gateways[-1].process.wait(WAIT_SECONDS)
    return load.seen, ends, gateways


def judge(seen, ends, gateways, options):
    """What is wrong with it."""
    if seen != {"served": options.requests}:
        yield f"requests: {dict(seen)}"
    if ends != {"whole": options.streams // options.restarts * options.restarts}:
        yield f"streams: {dict(ends)}"
    for gateway in gateways:
        if gateway.process.returncode != 0 or "connections_cut=0" not in gateway.said() or "panicked" in gateway.said():
            yield f"{gateway.name} ended with {gateway.process.returncode}:\n{gateway.said()[-2000:]}"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--gateway", required=True, type=lambda path: pathlib.Path(path).resolve())
    options.add_argument("--mode", choices=["socket", "port"], required=True)
    options.add_argument("--requests", type=int, default=10_000)
    options.add_argument("--streams", type=int, default=200)
    options.add_argument("--restarts", type=int, default=5)
    options.add_argument("--clients", type=int, default=32)
    options.add_argument("--lame-duck-ms", type=int, default=1_000, help="for clients that keep their connections")
    options = options.parse_args()
    migrates = pathlib.Path("/proc/sys/net/ipv4/tcp_migrate_req").read_text().strip()
    with tempfile.TemporaryDirectory() as folder:
        manager = Manager(options.gateway, options.mode, folder, [f"server.lame_duck_ms={options.lame_duck_ms}"])
        try:
            seen, ends, gateways = asyncio.run(play(manager, options))
            wrong = list(judge(seen, ends, gateways, options))
        finally:
            manager.end()
    refused, broken = (sum(count for what, count in seen.items() if what.startswith(word)) for word in ("refused", "broken"))
    print(f"{options.mode}, tcp_migrate_req={migrates}: {options.restarts} restarts; {sum(seen.values())} requests: {refused} refused, {broken} broken; "
          f"{sum(ends.values())} streams: {sum(ends.values()) - ends['whole']} broken")
    print("\n".join(wrong) or "as it should be")
    sys.exit(bool(wrong))


main()
