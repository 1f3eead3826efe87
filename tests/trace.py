#!/usr/bin/env python3
"""Posts requests to a gateway that traces them, and decodes what a collector gets with the official package `opentelemetry-proto`.

* Every post is an ExportTraceServiceRequest without a field that its definition does not have, and is byte for byte what the package
  makes of it again.
* A request is one tree: root, parts within it, ids of the right length, the client's trace. Engines are told the legs' own spans.
* A retry is two prefill spans, a failure has an error status, a request whose client does not keep it has no spans.
* The gateway posts what is left when it is stopped.

Started by trace.sh. Exit status 0: all as it should be.
"""
import argparse
import http.client
import http.server
import json
import pathlib
import tempfile
import threading

from google.protobuf import unknown_fields
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from processes import Process, wait

CHAT = "/v1/chat/completions"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
WORDS = "nobody is to read this "
STREAMED = ["receive", "admission", "tokenise", "decide", "prefill", "decode first byte", "stream"]


class Collector(http.server.ThreadingHTTPServer):
    """Takes posts of spans."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Take)
        self.posts, self.complaints = [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def spans(self):
        return [span for post in list(self.posts) for of in post.resource_spans for scope in of.scope_spans for span in scope.spans]

    def tree(self, trace):
        """The root of a trace and its parts by their beginning, once the root is here: it is the last to end."""
        def found():
            spans = sorted((s for s in self.spans() if s.trace_id.hex() == trace), key=lambda s: s.start_time_unix_nano)
            return spans if any(s.kind == Span.SPAN_KIND_SERVER for s in spans) else None
        spans = wait(f"the spans of {trace}", found)
        (root,) = [s for s in spans if s.kind == Span.SPAN_KIND_SERVER]
        return root, [s for s in spans if s is not root]


class Take(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        post = ExportTraceServiceRequest.FromString(body)
        right = {
            "path": self.path == "/v1/traces",
            "content-type": self.headers["content-type"] == "application/x-protobuf",
            "header of the configuration": self.headers["x-key"] == "k=1",
            "same bytes": post.SerializeToString(deterministic=True) == body,
        }
        self.server.complaints += [name for name, is_right in right.items() if not is_right]
        self.server.complaints += list(unknown(post))
        self.server.posts.append(post)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def unknown(message):
    """Fields, in it and below, that the definition does not have."""
    for field in unknown_fields.UnknownFieldSet(message):
        yield f"{message.DESCRIPTOR.name} has an unknown field {field.field_number}"
    for field, value in message.ListFields():
        if field.message_type:
            for one in value if isinstance(value, (list, tuple)) or hasattr(value, "add") else [value]:
                yield from unknown(one)


def attributes(span):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def check(what, is_so, shown=""):
    if not is_so:
        raise SystemExit(f"trace: not so: {what}\n{shown}")


def check_tree(root, parts, trace, parent):
    check("the trace is the client's", (root.trace_id.hex(), root.parent_span_id.hex()) == (trace, parent), root)
    for part in parts:
        check("ids have their length", (len(part.trace_id), len(part.span_id)) == (16, 8), part)
        check("parts are the root's", part.parent_span_id == root.span_id, part)
        inside = root.start_time_unix_nano <= part.start_time_unix_nano <= part.end_time_unix_nano <= root.end_time_unix_nano
        check("parts lie within the root", inside, f"{root}\n{part}")
        check("only the client is elsewhere", part.flags == 0x101 and root.flags == 0x301, part)
    check("ids differ", len({s.span_id for s in [root, *parts]}) == len(parts) + 1)


def send(address, body, trace, flags="01"):
    connection = http.client.HTTPConnection(address, timeout=30)
    headers = {"content-type": "application/json", "authorization": "Bearer sk-client", "traceparent": f"00-{trace}-{PARENT}-{flags}"}
    connection.request("POST", CHAT, json.dumps(body), headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def fault(engine, what):
    connection = http.client.HTTPConnection(engine, timeout=30)
    connection.request("POST", "/sim/faults", json.dumps({"path": CHAT, "times": 1, "what": what}))
    check("the simulator takes faults", connection.getresponse().status == 200)
    connection.close()


def names(spans):
    return [span.name for span in spans]


def failed(span):
    return span.status.code == Status.STATUS_CODE_ERROR


def run(directory, program, collector, started):
    def start(name, *arguments):
        started.append(Process(directory, name, [program, *arguments]))
        return started[-1].wait_for(r"http://([0-9.]+:\d+)")[0]

    prefiller = start("prefiller", "sim", "--role", "prefill", "--port", "0")
    decoder = start("decoder", "sim", "--role", "decode", "--port", "0")
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    pathlib.Path(directory, "gateway.toml").write_text(
        f'[trace]\nendpoint = "{endpoint}"\nheaders = "x-key=k=1"\nservice_name = "edge"\n[prompt]\ntokens = "engine"\n')
    gateway = start("gateway", "--config", "gateway.toml", "--host", "127.0.0.1", "--port", "0", "--prefill", prefiller,
                    "--decode", decoder)
    body = {"model": "sim", "messages": [{"role": "user", "content": WORDS * 10}], "max_tokens": 8, "stream": True}

    check("a stream is answered", send(gateway, body, TRACE) == 200)
    root, parts = collector.tree(TRACE)
    check_tree(root, parts, TRACE, PARENT)
    check("all steps are there", names(parts) == STREAMED, names(parts))
    check("nothing failed", not any(map(failed, [root, *parts])), root)
    said = attributes(root)
    check("the root says it", (said["http.request.method"], said["http.route"], said["http.response.status_code"]) == ("POST", CHAT, 200), said)
    check("tokens are counted", said["gen_ai.usage.output_tokens"] == 8 and said["gen_ai.usage.input_tokens"] > 0, said)
    check("legs are a client's", [p.kind for p in parts if p.name in ("prefill", "decode first byte")] == [Span.SPAN_KIND_CLIENT] * 2)

    retried = TRACE[:-1] + "a"
    fault(prefiller, {"kind": "status", "status": 500})
    check("it is tried again", send(gateway, body, retried) == 200)
    root, parts = collector.tree(retried)
    check_tree(root, parts, retried, PARENT)
    prefills = [p for p in parts if p.name == "prefill"]
    check("both attempts are there", [(failed(p), attributes(p)["pd_proxy.attempt"]) for p in prefills] == [(True, 1), (False, 2)], prefills)
    check("the first says why", attributes(prefills[0])["error.type"] == "500", prefills[0])
    check("the request did not fail", not failed(root), root)

    check("it is answered as well", send(gateway, body, TRACE[:-1] + "b", flags="00") == 200)
    started[1].end()
    lost = TRACE[:-1] + "c"
    status = send(gateway, body, lost)
    check("without a decoder it fails", status in (502, 503), status)
    started[2].end()
    root, parts = collector.tree(lost)
    check_tree(root, parts, lost, PARENT)
    check("that is an error", failed(root) and attributes(root)["http.response.status_code"] == status, root)
    check("what is not kept is not posted", not any(s.trace_id.hex() == TRACE[:-1] + "b" for s in collector.spans()))

    for post in collector.posts:
        resource = {a.key: a.value.string_value for a in post.resource_spans[0].resource.attributes}
        check("who it is", resource["service.name"] == "edge" and "service.version" in resource, resource)
        check("no text, no key", not any(word in str(post) for word in (WORDS.strip(), "sk-client", "k=1")), post)
    check("the format is right", not collector.complaints, set(collector.complaints))
    print(f"trace: {len(collector.spans())} spans in {len(collector.posts)} posts")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    program, collector, started = parser.parse_args().program, Collector(), []
    with tempfile.TemporaryDirectory() as directory:
        try:
            run(directory, program, collector, started)
        finally:
            for process in reversed(started):
                process.end()


main()
