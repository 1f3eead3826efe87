"""Proves config/kubernetes/autoscale, for deploy.py: KEDA's ScaledObjects by the schema of KEDA's own CustomResourceDefinition, and that both
ways to scale say the same of the same engines, by metrics that exist.
"""
import json
import re

import jsonschema
import yaml

from deploy_rules import ROOT

FOLDER = "autoscale"
FILES = {f"{FOLDER}/{name}" for name in ("hpa.yaml", "keda.yaml", "prometheus-adapter.yaml")}
SCHEMA = ROOT / "tests/captures/kubernetes/keda-scaledobject.json"
ROLES = {"vllm-prefill": "prefill", "vllm-decode": "decode"}


def strict(schema):
    """A schema without fields that it does not name, as `kubectl --validate=strict` has it. Labels and other metadata are Kubernetes' own."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def is_scaled_object(doc):
    return doc["kind"] == "ScaledObject"


def fits(name, doc):
    """What KEDA's schema has against a ScaledObject."""
    if doc.get("apiVersion") != "keda.sh/v1alpha1":
        return [f"{name}: {doc.get('apiVersion')} is no version of ScaledObject"]
    validator = jsonschema.Draft202012Validator(strict(json.loads(SCHEMA.read_text())))
    return [f"{name}, KEDA: {error.message} at {'/'.join(map(str, error.absolute_path))}" for error in validator.iter_errors(doc)]


def by_name(docs):
    return {doc["metadata"]["name"]: doc["spec"] for doc in docs}


def limits(hpa, keda):
    """Where the two ways to scale one role differ."""
    replicas = (hpa["minReplicas"], hpa["maxReplicas"])
    if replicas != (keda["minReplicaCount"], keda["maxReplicaCount"]) or replicas[0] < 1:
        yield f"replicas are {replicas} and {keda['minReplicaCount'], keda['maxReplicaCount']}"
    if hpa["behavior"] != keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]:
        yield "behaviors differ"
    if hpa["scaleTargetRef"] != keda["scaleTargetRef"]:
        yield "targets differ"


def metric(hpa, keda, role, rule):
    """Whether both look at one metric of the role, and what they make of it."""
    external = hpa["metrics"][0]["external"]
    trigger = keda["triggers"][0]
    name = external["metric"]["name"]
    if not re.search(rf"^\| `{name}` \| gauge \| `role` \|", (ROOT / "docs/metrics.md").read_text(), re.M):
        yield f"docs/metrics.md has no gauge {name} by role"
    if rule["name"]["as"] != name or rule["seriesQuery"] != name:
        yield f"prometheus-adapter has no {name}"
    if external["metric"]["selector"]["matchLabels"] != {"role": role} or f'{name}{{role="{role}"}}' not in trigger["metadata"]["query"]:
        yield f"not the metric of {role}"
    targets = (external["target"], trigger["metricType"], trigger["metadata"]["threshold"])
    if targets != ({"type": "AverageValue", "averageValue": "1"}, "AverageValue", "1"):
        yield f"the targets are {targets}, the metric is a number of engines"
    if trigger["metadata"].get("ignoreNullValues") != "false":
        yield "KEDA takes an empty answer (ignoreNullValues) for 0"


def problems(manifests):
    """What is wrong with the files together."""
    hpas, objects = (by_name(manifests[f"{FOLDER}/{name}.yaml"]) for name in ("hpa", "keda"))
    if hpas.keys() != ROLES.keys() or objects.keys() != ROLES.keys():
        return [f"{FOLDER}: scaled are {sorted(hpas)} and {sorted(objects)}"]
    rule, = yaml.safe_load(manifests[f"{FOLDER}/prometheus-adapter.yaml"][0]["data"]["config.yaml"])["externalRules"]
    found = []
    for name, role in ROLES.items():
        found += [f"{FOLDER}, {name}: {why}" for why in [*limits(hpas[name], objects[name]), *metric(hpas[name], objects[name], role, rule)]]
    return found


def spec(files, kind, at=0):
    return files.manifests[f"{FOLDER}/{kind}.yaml"][at]["spec"]


# What is planted, and a word of what must be said of it.
FAULTS = {
    "a field that KEDA has not": (lambda f: spec(f, "keda").update(minReplicas=1), "minReplicas"),
    "a number for KEDA's text": (lambda f: spec(f, "keda")["triggers"][0]["metadata"].update(threshold=1), "KEDA"),
    "another version of KEDA's": (lambda f: f.manifests[f"{FOLDER}/keda.yaml"][0].update(apiVersion="keda.sh/v1"), "version"),
    "a field that the HPA has not": (lambda f: spec(f, "hpa").update(minReplicaCount=1), "minReplicaCount"),
    "no engine": (lambda f: (spec(f, "hpa").update(minReplicas=0), spec(f, "keda").update(minReplicaCount=0)), "replicas are"),
    "another metric": (lambda f: spec(f, "hpa")["metrics"][0]["external"]["metric"].update(name="pd_proxy_engines_wanted"), "pd_proxy_engines_wanted"),
    "the other role": (lambda f: spec(f, "keda", 1)["triggers"][0]["metadata"].update(query='sum(pd_proxy_engines_needed{role="prefill"})'), "not the metric"),
    "a target of two": (lambda f: spec(f, "keda")["triggers"][0]["metadata"].update(threshold="2"), "targets"),
    "nothing for 0": (lambda f: spec(f, "keda")["triggers"][0]["metadata"].pop("ignoreNullValues"), "ignoreNullValues"),
    "another window": (lambda f: spec(f, "hpa")["behavior"]["scaleDown"].update(stabilizationWindowSeconds=0), "behaviors"),
}
