"""Processes of the program under test, and what they answer: for the checks that run them."""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.parse

WAIT_SECONDS = 60


class Process:
    """A process whose output goes to a file, ended with the rig."""

    def __init__(self, directory, name, command, env=None, files=()):
        self.log = pathlib.Path(directory, f"{name}.log")
        self.name = name
        with self.log.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=directory, env=env, pass_fds=files)

    def said(self):
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern):
        """The groups of `pattern` in what it says."""
        def found():
            if match := re.search(pattern, self.said()):
                return match.groups()
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended with {self.process.returncode}:\n{self.said()}")
            return None
        return wait(f"{self.name} to say {pattern!r}", found)

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def wait(what, probe, seconds=WAIT_SECONDS):
    """What `probe` returns once that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := probe():
            return result
        time.sleep(0.1)
    raise SystemExit(f"waited {seconds} s in vain for {what}")


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def get(address, path, **query):
    """The text of a GET with status 200 or 400, as Prometheus answers."""
    connection = http.client.HTTPConnection(address, timeout=WAIT_SECONDS)
    connection.request("GET", path + ("?" + urllib.parse.urlencode(query) if query else ""))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return text


def ask(address, body=None, key=None, path="/v1/completions", after_events=None, seconds=WAIT_SECONDS):
    """Asks a gateway; the status, or 0 where the answer broke off. `after_events`: called once a stream has so many."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    connection = http.client.HTTPConnection(address, timeout=seconds)
    try:
        text = body if not body or isinstance(body, str) else json.dumps(body)
        connection.request("POST" if body else "GET", path, text or None, headers)
        answer = connection.getresponse()
        if after_events:
            events, act = after_events
            for _ in range(2 * events):
                answer.readline()
            act()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def ask_json(url, path, body):
    """The JSON that a server answers to a POST with status 200."""
    address = urllib.parse.urlsplit(url).netloc
    connection = http.client.HTTPConnection(address, timeout=WAIT_SECONDS)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {text}")
    return json.loads(text)
