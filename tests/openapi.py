#!/usr/bin/env python3
"""Judges the OpenAPI documents by openapi-spec-validator, and what a gateway answers by the schemas of its own document.

* The document that the program prints, and those of both listeners of a gateway, are valid OpenAPI 3.1.
* The listeners together have the operations that the program prints, each on one of them or on both.
* Refusals have the form that the document gives for their route; so has the report of an order to every engine.

At the end faults are planted in the document and in answers, which must be found. Started by openapi.sh. Exit status 0: all as it
should be.
"""
import argparse
import copy
import http.client
import json
import pathlib
import subprocess
import tempfile

from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from processes import Process, free_port

METHODS = {"get", "post", "put", "patch", "delete"}
# A request to a gateway whose engines are away: listener, method, path, body, expected status.
REQUESTS = [
    ("clients", "POST", "/v1/chat/completions", "no JSON", 400),
    ("clients", "POST", "/v1/messages", "no JSON", 400),
    ("clients", "POST", "/v1/completions", '{"model":"m","prompt":"a"}', 503),
    ("clients", "POST", "/v1/embeddings", '{"model":"m","input":"a"}', 503),
    ("clients", "DELETE", "/v1/models", None, 405),
    ("operators", "POST", "/instances/add", '{"type":"prefill"}', 400),
    ("operators", "POST", "/instances/move", '{"instance":"127.0.0.1:1"}', 400),
    ("operators", "GET", "/debug/route/nobody", None, 404),
    ("operators", "POST", "/sleep", None, 502),
]


def faults(document):
    """The faults of a document, in a line each."""
    try:
        return [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()]
    except Exception as error:  # A reference that leads nowhere is raised.
        return [f"{type(error).__name__}: {error}"]


def operations(document):
    return {(path, method) for path, item in document["paths"].items() for method in METHODS & item.keys()}


def ask(address, method, path, body=None):
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def schema_of(document, method, path):
    """The schema of an answer, with the components that it refers to."""
    template = path if path in document["paths"] else path.rsplit("/", 1)[0] + "/{id}"
    item = document["paths"][template]
    responses = (item.get(method.lower()) or next(iter(item.values())))["responses"]
    # The report of an order to every engine is the same whatever came of it.
    report = responses.get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if report.get("$ref", "").endswith("/EveryEngine"):
        return report | {"components": document["components"]}
    answer = responses["default"]
    while "$ref" in answer:
        answer = document["components"]["responses"][answer["$ref"].rsplit("/", 1)[1]]
    return answer["content"]["application/json"]["schema"] | {"components": document["components"]}


def misfits(schema, value):
    return [error.message for error in Draft202012Validator(schema).iter_errors(value)]


def plant(document):
    """Documents with one fault each, by its name."""
    def planted(change):
        other = copy.deepcopy(document)
        change(other)
        return other
    chat = ("paths", "/v1/chat/completions", "post")

    def at(other, *path):
        for step in path:
            other = other[step]
        return other
    yield "no version", planted(lambda it: it["info"].pop("version"))
    yield "a reference to nowhere", planted(lambda it: at(it, *chat, "responses").update({"default": {"$ref": "#/components/responses/No"}}))
    yield "a path without its parameter", planted(lambda it: at(it, "paths", "/v1/responses/{id}", "get").pop("parameters"))
    yield "one id for two operations", planted(lambda it: at(it, *chat).update({"operationId": "post_v1_completions"}))
    yield "an unknown type", planted(lambda it: at(it, "components", "schemas", "Members").update({"type": "objekt"}))
    yield "an answer without words", planted(lambda it: at(it, *chat, "responses", "200").pop("description"))
    yield "a parameter of no place", planted(lambda it: at(it, "paths", "/sleep", "post", "parameters", 0).update({"in": "nowhere"}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    program = str(pathlib.Path(parser.parse_args().program).resolve())
    printed = json.loads(subprocess.run([program, "generate", "openapi"], capture_output=True, check=True, timeout=20).stdout)
    found, answers = [f"printed: {fault}" for fault in faults(printed)], []
    with tempfile.TemporaryDirectory() as directory:
        clients, operators = free_port(), free_port()
        gateway = Process(directory, "gateway", [
            program, "--host", "127.0.0.1", "--port", str(clients), "--admin-host", "127.0.0.1", "--admin-port", str(operators),
            "--prefill", f"127.0.0.1:{free_port()}", "--decode", f"127.0.0.1:{free_port()}"])
        try:
            gateway.wait_for("(listening for operators)")
            addresses = {"clients": f"127.0.0.1:{clients}", "operators": f"127.0.0.1:{operators}"}
            served = {name: json.loads(ask(address, "GET", "/openapi.json")[1]) for name, address in addresses.items()}
            for name, document in served.items():
                found += [f"served to {name}: {fault}" for fault in faults(document)]
            together = set().union(*map(operations, served.values()))
            found += [f"only the one or the other has {operation}" for operation in sorted(together ^ operations(printed))]
            for listener, method, path, body, expected in REQUESTS:
                status, text = ask(addresses[listener], method, path, body)
                if status != expected:
                    found.append(f"{method} {path}: {status}, not {expected}: {text[:200]}")
                    continue
                schema = schema_of(served[listener], method, path)
                found += [f"{method} {path}: {fault}" for fault in misfits(schema, json.loads(text))]
                answers.append((schema, json.loads(text)))
        finally:
            gateway.end()
    for fault in found:
        print(f"openapi: {fault}")
    if found:
        raise SystemExit(1)
    planted = list(plant(printed))
    for what, document in planted:
        if not faults(document):
            raise SystemExit(f"openapi: planted: {what}; it was not found")
    for schema, answer in answers:
        for member in schema["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]["required"]:
            if not misfits(schema, {name: value for name, value in answer.items() if name != member}):
                raise SystemExit(f"openapi: an answer without {member} was taken: {answer}")
    print(f"openapi: ok, {len(operations(printed))} operations, {len(answers)} answers, {len(planted)} planted faults were found")


if __name__ == "__main__":
    main()
