#!/usr/bin/env python3
"""Records what a real kube-apiserver answers about pods, for tests/it/kubernetes.

  python3 tests/real/kubernetes_record.py APISERVER RUN TO

Writes the files that tests/captures/kubernetes/README.md describes. What differs from run to run (times, uids, versions) is
kept as it came.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from kube_api import Cluster  # noqa: E402


def main():
    apiserver, run, to = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    pathlib.Path(run).mkdir(parents=True)
    to.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(run, apiserver, "llm")
    labels = {"app": "engine", "role": "prefill"}
    before = cluster.version()
    cluster.create("p-0", labels, {"http": 8100})
    cluster.status("p-0", "10.0.0.1", False)
    cluster.status("p-0", "10.0.0.1", True)
    cluster.delete("p-0")
    cluster.gone("p-0")
    selector = "labelSelector=role%3Dprefill"
    path = f"{cluster.pods()}?{selector}"
    lines = cluster.watch(f"{path}&resourceVersion={before}&allowWatchBookmarks=true", 3)
    (to / "watch.jsonl").write_text("".join(f"{line}\n" for line in lines))

    for number in range(3):
        cluster.create(f"p-{number}", labels, {"http": 8100})
        cluster.status(f"p-{number}", f"10.0.0.{number + 1}", True)
    first = cluster.raw("GET", f"{path}&limit=2")[1]
    more = json.loads(first)["metadata"]["continue"]
    (to / "list-1.json").write_text(first)
    (to / "list-2.json").write_text(cluster.raw("GET", f"{path}&limit=2&continue={more}")[1])

    token = cluster.service_account("nobody")
    answers = {
        "forbidden-list": cluster.raw("GET", path, token=token),
        "forbidden-watch": cluster.raw("GET", f"{path}&watch=true", token=token),
        "unauthorized": cluster.raw("GET", path, token="no-such-token"),
        "no-such-resource": cluster.raw("GET", "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"),
    }
    cluster.compact()
    answers["expired-continue"] = cluster.raw("GET", f"{path}&limit=2&continue={more}")
    cluster.kill()
    cluster.start()
    (to / "expired-watch.jsonl").write_text("\n".join(cluster.watch(f"{path}&resourceVersion={before}", 2)) + "\n")
    for name, (status, text) in answers.items():
        print(name, status)
        (to / f"{name}.{status}.json").write_text(text if text.endswith("\n") else text + "\n")


if __name__ == "__main__":
    main()
