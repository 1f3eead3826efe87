"""Servers that answer wrongly, to see that clients' checks notice."""
import contextlib
import http.client
import http.server
import threading
import urllib.error
import urllib.request


class Empty(http.server.BaseHTTPRequestHandler):
    """200 and nothing, to everything."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_):
        pass


class Meddling(Empty):
    """What the gateway answers, but for one letter of texts that are not streamed."""

    gateway = ""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0))) or None
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        request = urllib.request.Request(self.gateway + self.path, body, headers, method=self.command)
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        try:
            text = answer.read()
        except http.client.HTTPException as broken:
            text = getattr(broken, "partial", b"")
        text = text.replace(b'"content":"', b'"content":"x').replace(b'"type":"text","text":"', b'"type":"text","text":"x')
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(text)

    do_GET = do_POST


@contextlib.contextmanager
def stand_in(fault, gateway):
    """The URL of such a server while it runs; `fault` is `empty` or `meddling`."""
    kind = {"empty": Empty, "meddling": type("Here", (Meddling,), {"gateway": gateway})}[fault]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
