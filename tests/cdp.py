"""A headless Chromium, driven over its DevTools protocol: a WebSocket by the standard library, and what a check needs of a page."""
import base64
import http.client
import itertools
import json
import os
import pathlib
import select
import socket
import struct
import time
import urllib.parse

from processes import Process

SECONDS = 30
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-extensions", "--disable-sync", "--no-proxy-server",
    "--disable-background-timer-throttling", "--disable-renderer-backgrounding", "--hide-scrollbars", "--lang=en-GB",
    "--force-color-profile=srgb", "--remote-debugging-port=0",
]
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}


class WebSocket:
    """A client that sends and receives text."""

    def __init__(self, url):
        at = urllib.parse.urlsplit(url)
        self.socket = socket.create_connection((at.hostname, at.port), SECONDS)
        nonce = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {at.path} HTTP/1.1\r\nHost: {at.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {nonce}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.bytes = b""
        while b"\r\n\r\n" not in self.bytes:
            self.bytes += self.piece()
        head, self.bytes = self.bytes.split(b"\r\n\r\n", 1)
        assert b" 101 " in head.split(b"\r\n")[0], head

    def piece(self):
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise ConnectionError("the browser hung up")
        return piece

    def take(self, count):
        while len(self.bytes) < count:
            self.bytes += self.piece()
        taken, self.bytes = self.bytes[:count], self.bytes[count:]
        return taken

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack(">BH", 0xFE, len(data))
        if len(data) > 0xFFFF:
            size = struct.pack(">BQ", 0xFF, len(data))
        repeated = mask * (len(data) // 4 + 1)
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(repeated[:len(data)], "big")).to_bytes(len(data), "big")
        self.socket.sendall(b"\x81" + size + mask + masked)

    def receive(self):
        """The next message; pings and the like are left out."""
        whole = b""
        while True:
            first, size = self.take(2)
            size &= 0x7F
            if size > 125:
                size = int.from_bytes(self.take(2 if size == 126 else 8), "big")
            data = self.take(size)
            if first & 0x0F in (0, 1):
                whole += data
                if first & 0x80:
                    return whole.decode()
            elif first & 0x0F == 8:
                raise ConnectionError("the browser closed the connection")

    def waits(self, seconds):
        return bool(self.bytes) or bool(select.select([self.socket], [], [], seconds)[0])


class Browser(Process):
    """A browser with a profile of its own."""

    def __init__(self, program, directory):
        profile = pathlib.Path(directory, "profile")
        super().__init__(directory, "chromium", [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"])
        (port,) = self.wait_for(r"DevTools listening on ws://127.0.0.1:(\d+)/")
        self.address = f"127.0.0.1:{port}"

    def page(self):
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS)
        connection.request("PUT", "/json/new?about:blank")
        target = json.load(connection.getresponse())
        connection.close()
        return Page(target["webSocketDebuggerUrl"])


class Page:
    """A tab. `events` are those that came so far."""

    def __init__(self, url):
        self.socket, self.ids, self.events = WebSocket(url), itertools.count(1), []
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        number = next(self.ids)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def settle(self, seconds):
        """Takes in events for a time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.socket.waits(left):
                self.events.append(json.loads(self.socket.receive()))

    def js(self, expression):
        """The value of an expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {json.dumps(answer['exceptionDetails'])[:2000]}")
        return answer["result"].get("value")

    def until(self, expression, seconds=SECONDS):
        """Waits until it is true; returns its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.js(expression):
                return value
            self.settle(0.1)
        raise SystemExit(f"waited {seconds} s in vain for {expression}; the page says: {self.js('document.body.innerText')[:3000]}")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def press(self, key, modifiers=0):
        text = {"Enter": "\r", " ": " "}.get(key, "" if len(key) > 1 else key)
        common = {"key": key, "code": "Space" if key == " " else key, "modifiers": modifiers}
        common["windowsVirtualKeyCode"] = KEYS.get(key, 0)
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def media(self, **features):
        known = {"prefers-color-scheme": features.get("scheme", "light"),
                 "prefers-reduced-motion": "reduce" if features.get("still") else "no-preference"}
        self.call("Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in known.items()])

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]))
