"""Values for helm.py: by which the chart is rendered, which it refuses, where it differs from the plain manifests, and what is planted."""
import json

from pod_security import restricted

# Where the chart's defaults may differ from config/kubernetes, and why. Each one must.
DIFFERENCES = {
    # Several releases can be in one namespace, and each must find its own pods only.
    r"(labels|matchLabels|spec > selector) > app\.kubernetes\.io/instance$": "the release's name",
    # What tools and people ask of whatever a chart made.
    r"^\w+ > pd-proxy > metadata > labels > (app\.kubernetes\.io/(version|managed-by)|helm\.sh/chart)$": "who made it",
    # Plain manifests go where kubectl points; a chart knows where, and says it.
    r"^RoleBinding > pd-proxy > subjects > 0 > namespace$": "the release's namespace",
    # What Kubernetes takes where nothing is said, said because it is a value.
    r"^Service > pd-proxy > spec > type$": "ClusterIP",
    # The chart makes what the plain manifests have made by hand.
    r"^Secret > pd-proxy > ": "keys of a first client and of operators",
}

ENGINES = {"podSelector": {"matchLabels": {"app": "vllm"}}}
OUT = {"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [{"port": 50051, "protocol": "TCP"}]}


def leaves(value, path=()):
    """The path of everything in a tree of values that is no table, or an empty one."""
    if not isinstance(value, dict) or not value:
        return [path]
    return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]


def env(manifests):
    return {one["name"]: one.get("value") for one in manifests.container["env"]}


def policy(manifests):
    one, = manifests.all("NetworkPolicy")
    return one["spec"]


def store(manifests):
    """The image of the chart's own store, if its pod fits the profile `restricted`, and all that means it finds it."""
    pod = manifests.of("StatefulSet", "pd-proxy-valkey")["spec"]["template"]
    selectors = [manifests.of("Service", "pd-proxy-valkey")["spec"]["selector"],
                 *(manifests.of(kind, "pd-proxy-valkey")["spec"][what]["matchLabels"] for kind, what in [("StatefulSet", "selector"), ("NetworkPolicy", "podSelector")]),
                 manifests.of("NetworkPolicy")["spec"]["egress"][-1]["to"][0]["podSelector"]["matchLabels"]]
    gateways = manifests.of("NetworkPolicy", "pd-proxy-valkey")["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    found = all(one == pod["metadata"]["labels"] for one in selectors) and gateways.items() <= manifests.pod["metadata"]["labels"].items()
    apart = not gateways.items() <= pod["metadata"]["labels"].items()
    return pod["spec"]["containers"][0]["image"] if found and apart and not list(restricted(pod["spec"])) else None


# By what it is rendered, and what must then be true of it beside what always is. Every value of values.yaml is in one of them.
CASES = {
    "services in another namespace": (
        {"discovery": {"mode": "services", "namespace": "engines", "scheme": "https",
                       "prefill": {"service": "prefillers", "ports": ["http", 8001]}, "decode": {"service": "decoders", "ports": ["http"]}}},
        lambda m: m.kubernetes == {"namespace": "engines", "scheme": "https", "prefill_service": "prefillers", "prefill_ports": ["http", "8001"],
                                   "decode_service": "decoders", "decode_ports": ["http"]}
        and m.all("RoleBinding")[0]["subjects"][0]["namespace"] == "default"
        and policy(m)["egress"][2]["to"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "engines"}),
    "labels and selectors": (
        {"discovery": {"prefill": {"selector": "app=vllm,role=p"}, "decode": {"selector": "role in (decode, both),!spare"}}},
        lambda m: m.kubernetes["prefill_selector"] == "app=vllm,role=p" and m.kubernetes["decode_selector"] == "role in (decode, both),!spare"),
    "headless services": (
        {"discovery": {"mode": "dns", "prefill": {"ports": [7100, 7101], "labels": {"app": "sglang", "role": "p"}}, "decode": {"labels": {"app": "vllm-2", "role": "d"}}}},
        lambda m: m.said["discovery"]["prefill_dns"] == ["pd-proxy-prefillers:7100", "pd-proxy-prefillers:7101"]
        and not m.all("Role") + m.all("ServiceAccount") and len(m.all("Service")) == 3),
    "services of others by DNS": (
        {"discovery": {"mode": "dns", "prefill": {"service": "p.engines"}, "decode": {"service": "d.engines"}}},
        lambda m: m.said["discovery"]["decode_dns"] == ["d.engines:8000"] and len(m.all("Service")) == 1),
    "static": (
        {"discovery": {"mode": "static", "prefill": {"hosts": ["10.0.0.1:7100", "https://p2:7101"]}, "decode": {"hosts": ["[fd00::1]:7200"]}}},
        lambda m: m.said["fleet"]["decode"] == ["[fd00::1]:7200"] and "to" not in policy(m)["egress"][1]),
    "two models": (
        {"fleets": {"chat": {"prefill": {"labels": {"app": "chat", "role": "p"}}, "decode": {"labels": {"app": "chat", "role": "d"}}, "config": {"fleet": {"model": "Qwen3-8B"}}},
                    "code": {"prefill": {"labels": {"app": "code", "role": "p"}}, "decode": {"selector": "app=code,role=d"}, "config": {"dialect": {"name": "pool"}}},
                    "cloud": {"config": {"fleet": {"remote": "https://api.example.com/v1", "model": "large"}}}},
         "config": {"models": {"fallback": ["Qwen3-8B=cloud"]}}},
        lambda m: m.said["fleets"]["chat"]["fleet"] == {"model": "Qwen3-8B"} and m.said["fleets"]["code"]["dialect"] == {"name": "pool"}
        and m.said["fleets"]["code"]["discovery"]["kubernetes"]["decode_selector"] == "app=code,role=d" and "discovery" not in m.said
        and m.said["fleets"]["cloud"] == {"fleet": {"remote": "https://api.example.com/v1", "model": "large"}}),
    "names and images": (
        {"fullnameOverride": "door", "image": {"repository": "registry.example/pd", "tag": "edge", "pullPolicy": "Always"},
         "imagePullSecrets": [{"name": "registry"}]},
        lambda m: m.container["image"] == "registry.example/pd:edge" and m.pod["spec"]["imagePullSecrets"] == [{"name": "registry"}] and m.deployment["metadata"]["name"] == "door"),
    "another name": ({"nameOverride": "gateway"}, lambda m: m.deployment["metadata"]["name"] == "pd-proxy-gateway"),
    "ports": (
        {"ports": {"http": 8181, "admin": 9100}, "service": {"type": "NodePort", "port": 80, "nodePort": 30080, "annotations": {"a": "b"}}, "host": "::",
         "config": {"dialect": {"name": "layerwise"}}},
        lambda m: env(m)["PD_PROXY__DIALECT__CALLBACK_URL"] == "http://[$(POD_IP)]:8181" and m.said["server"]["admin_host"] == "::"
        and m.of("Service")["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http", "nodePort": 30080}]),
    "a configuration": (
        {"config": {"route": {"scrape_ms": 0, "policy": "least_work"}, "retry": {"budget": 2, "delay_ms": 0.5, "resume": True},
                    "pool": {"hosts": ["a\"b=p1"]}, "limit": {"resume_tokens": 1234567890}, "discovery": {"interval_ms": 7000},
                    "engine": {"lease_ms": 480000}, "dialect": {"name": "layerwise", "callback_url": "http://gateway:8000"}}},
        lambda m: m.said["retry"] == {"budget": 2, "delay_ms": 0.5, "resume": True} and m.said["pool"]["hosts"] == ["a\"b=p1"]
        and m.said["limit"]["resume_tokens"] == 1234567890 and "PD_PROXY__DIALECT__CALLBACK_URL" not in env(m)),
    "no keys": ({"auth": {"clientKeys": False}}, lambda m: "auth" not in m.said and list(env(m)) == ["POD_IP"] and not m.all("Secret")),
    "keys that exist": (
        {"auth": {"existingSecret": "keys"}},
        lambda m: not m.all("Secret") and m.pod["spec"]["volumes"][1]["secret"]["secretName"] == "keys"),
    "keys of operators alone": (
        {"auth": {"existingSecret": "other", "clientKeys": False}},
        lambda m: "auth" not in m.said and "OPENAI_API_KEY" in env(m) and len(m.pod["spec"]["volumes"]) == 1),
    "a store that exists": (
        {"share": {"secret": "store"}},
        lambda m: next(one for one in m.container["env"] if one["name"] == "PD_PROXY__SHARE__URL")["valueFrom"] == {
            "secretKeyRef": {"name": "store", "key": "url"}} and not m.all("StatefulSet")),
    "a store for trying": (
        {"share": {"valkey": {"enabled": True, "image": "registry.example/valkey:9"}}},
        lambda m: store(m) == "registry.example/valkey:9" and env(m)["PD_PROXY__SHARE__URL"] == "redis://pd-proxy-valkey:6379"),
    "HTTPS": (
        {"tls": {"secret": "cert"}, "config": {"dialect": {"name": "layerwise"}}},
        lambda m: m.container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS" and m.pod["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
        and env(m)["PD_PROXY__DIALECT__CALLBACK_URL"] == "https://$(POD_IP):8000"),
    "certificates of clients": (
        {"tls": {"secret": "cert", "clientCa": True}},
        lambda m: m.container["livenessProbe"]["tcpSocket"] == {"port": "admin"} and m.said["tls"]["client_ca"].endswith("/ca.crt")),
    "long answers": (
        {"shutdown": {"lameDuckMs": 15500, "drainMs": 3600000}},
        lambda m: m.pod["spec"]["terminationGracePeriodSeconds"] == 3636),
    "one replica": ({"replicaCount": 1}, lambda m: not m.all("PodDisruptionBudget")),
    "many replicas": ({"replicaCount": 5, "podDisruptionBudget": {"maxUnavailable": 2}, "resources": {"limits": {"memory": "4Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}}},
                      lambda m: m.container["resources"]["limits"] == {"memory": "4Gi"}),
    "without guards": ({"podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False}},
                       lambda m: not m.all("PodDisruptionBudget") + m.all("NetworkPolicy")),
    "closed": (
        {"networkPolicy": {"clientsFrom": [ENGINES], "metricsFrom": [ENGINES], "dnsTo": [ENGINES], "apiServerTo": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
                           "apiServerPorts": [6443, 443, 8443], "enginesTo": [ENGINES], "enginePorts": [5557, 8443], "extraEgress": [OUT]}},
        lambda m: policy(m)["egress"][3] == OUT and policy(m)["egress"][2]["to"] == [ENGINES] and policy(m)["ingress"][0]["from"] == [ENGINES]
        and policy(m)["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]),
    "what is called": (
        {"config": {"pool": {"kind": "mooncake", "addresses": ["10.0.0.8:50088", "[fd00::8]:50089"], "admins": ["10.0.0.8:9003"]},
                    "trace": {"endpoint": "http://collector"}, "dialect": {"bootstrap_port": 9100, "bootstraps": ["10.0.0.1:8000=10.0.0.1:9101"]},
                    "events": {"listen": True, "ranks": 2, "replay_port": 0, "endpoints": ["10.0.0.1:8000=tcp://10.0.0.1:5600 tcp://10.0.0.1:5700",
                                                                                          "10.0.0.2:8000=tcp://*:5601"]},
                    "prompt": {"tokens": "engine"}, "hash": {"seed": "0"}, "key": {"preset": "mooncake-store-0.30"}}},
        lambda m: policy(m)["egress"][3]["to"] == [{"ipBlock": {"cidr": "10.0.0.8/32"}}, {"ipBlock": {"cidr": "fd00::8/128"}}]
        and policy(m)["egress"][4] == {"ports": [{"port": 80, "protocol": "TCP"}]}
        and [port["port"] for port in policy(m)["egress"][2]["ports"]] == [8000, 9100, 9101, 5557, 5558, 5600, 5700]
        and policy(m)["ingress"][2] == {"from": [{"podSelector": {}}], "ports": [{"port": 5601, "protocol": "TCP"}]}),
    "where what is called is": (
        {"config": {"pool": {"kind": "memcache", "addresses": ["meta:5000"]}, "trace": {"endpoint": "https://collector/"},
                    "prompt": {"tokens": "engine"}, "hash": {"seed": "0"}, "key": {"preset": "ascend-0.21"}},
         "networkPolicy": {"poolTo": [ENGINES], "traceTo": [OUT["to"][0]], "dnsPorts": [53, 5353]}},
        lambda m: policy(m)["egress"][3]["to"] == [ENGINES] and policy(m)["egress"][4]["to"] == OUT["to"] and len(policy(m)["egress"][0]["ports"]) == 4),
    "contexts": (
        {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": 1000650000, "supplementalGroups": [1000650001]},
         "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}},
        lambda m: m.pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, "fsGroup": 1000650000,
                                                       "supplementalGroups": [1000650001]}
        and m.container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
    "rules and a board": (
        {"metrics": {"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}, "runbookBase": "https://git.example/pd-proxy/"},
                     "dashboard": {"enabled": True, "labels": {"grafana_dashboard": "yes"}, "annotations": {"grafana_folder": "LLM"}}}},
        lambda m: [rule["alert"] for group in m.of("PrometheusRule")["spec"]["groups"] for rule in group["rules"]][0] == "PdProxyDown"
        and all(rule["annotations"]["runbook_url"].startswith("https://git.example/pd-proxy/docs/")
                for group in m.of("PrometheusRule")["spec"]["groups"] for rule in group["rules"])
        and json.loads(m.of("ConfigMap", "pd-proxy-dashboard")["data"]["pd-proxy.json"])["uid"] == "pd-proxy"
        and m.of("ConfigMap", "pd-proxy-dashboard")["metadata"]["labels"]["grafana_dashboard"] == "yes"),
    "an account": (
        {"serviceAccount": {"name": "llm", "annotations": {"a": "b"}}},
        lambda m: m.pod["spec"]["serviceAccountName"] == "llm" and m.of("ServiceAccount", "llm")["metadata"]["annotations"] == {"a": "b"}),
    "an account that exists": (
        {"serviceAccount": {"create": False, "name": "llm"}},
        lambda m: m.pod["spec"]["serviceAccountName"] == "llm" and m.of("RoleBinding")["subjects"][0]["name"] == "llm"),
    "rights that somebody else gives": ({"rbac": {"create": False}}, lambda m: m.pod["spec"]["automountServiceAccountToken"]),
    "a pod's extras": (
        {"podLabels": {"team": "llm"}, "podAnnotations": {"sidecar": "no"}, "extraEnv": [{"name": "RUST_BACKTRACE", "value": "1"}],
         "extraArgs": ["--set", "log.format=json"], "extraVolumes": [{"name": "model", "emptyDir": {}}],
         "extraVolumeMounts": [{"name": "model", "mountPath": "/model"}], "priorityClassName": "high", "nodeSelector": {"disk": "ssd"},
         "tolerations": [{"key": "gpu", "operator": "Exists"}], "topologySpreadConstraints": [],
         "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
             {"key": "zone", "operator": "In", "values": ["a"]}]}]}}}},
        lambda m: m.container["args"] == ["--config", "/etc/pd-proxy/pd-proxy.toml", "--set", "log.format=json"] and env(m)["RUST_BACKTRACE"] == "1"
        and m.pod["metadata"]["labels"]["team"] == "llm" and m.pod["metadata"]["annotations"]["sidecar"] == "no"),
    "constraints": (
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}, {
            "maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "pd-proxy"}}}]},
        lambda m: [len(one["labelSelector"]["matchLabels"]) for one in m.pod["spec"]["topologySpreadConstraints"]] == [2, 1]),
    "an Ingress": (
        {"ingress": {"enabled": True, "className": "nginx", "annotations": {"a": "b"}, "hosts": [{"host": "llm.example"}, {"host": "*.example", "path": "/v1"}],
                     "tls": [{"secretName": "cert", "hosts": ["llm.example"]}]}},
        lambda m: [rule["http"]["paths"][0]["path"] for rule in m.of("Ingress")["spec"]["rules"]] == ["/", "/v1"]),
    "a ServiceMonitor": (
        {"metrics": {"serviceMonitor": {"enabled": True, "interval": "5s", "labels": {"release": "prometheus"}, "tlsConfig": {"serverName": "pd"}}},
         "tls": {"secret": "cert"}},
        lambda m: "annotations" not in m.pod["metadata"] and m.of("ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
        <= m.of("Service", "pd-proxy-metrics")["metadata"]["labels"].items()
        and m.of("ServiceMonitor")["spec"]["selector"]["matchLabels"].items() - m.of("Service")["metadata"]["labels"].items()
        and m.of("ServiceMonitor")["spec"]["endpoints"][0]["scheme"] == "https"),
    "no annotations": ({"metrics": {"annotations": False}}, lambda m: "annotations" not in m.pod["metadata"]),
}

# Values, and what the message must say: their name, and what to do.
REFUSED = {
    "a fleet without decoders": ({"fleets": {"chat": {"prefill": {"labels": {"app": "chat"}}}}}, ["fleets.chat.decode", "labels"]),
    "a typo": ({"replica": 3}, ["replica"]),
    "a name of before": ({"replicas": 3}, ["replicas"]),
    "a text for a number": ({"replicaCount": "two"}, ["replicaCount", "integer"]),
    "a mode that is none": ({"discovery": {"mode": "label"}}, ["discovery.mode", "labels"]),
    "a boolean as a label": ({"discovery": {"prefill": {"labels": {"entry": True}}}}, ["discovery.prefill.labels.entry", "string"]),
    "a port of root": ({"ports": {"http": 80}}, ["ports.http", "1024"]),
    "a host without a port": ({"discovery": {"mode": "static", "prefill": {"hosts": ["10.0.0.1"]}}}, ["discovery.prefill.hosts"]),
    "operators open to all": ({"networkPolicy": {"metricsFrom": []}}, ["networkPolicy.metricsFrom"]),
    "two stores": ({"share": {"secret": "store", "valkey": {"enabled": True}}}, ["share.secret", "share.valkey.enabled", "leave one"]),
    "one port for two": ({"ports": {"admin": 8000}}, ["ports.http", "ports.admin", "of their own"]),
    "an authority without a certificate": ({"tls": {"clientCa": True}}, ["tls.clientCa", "tls.secret"]),
    "no time to notice": ({"shutdown": {"lameDuckMs": 4000}}, ["shutdown.lameDuckMs", "4000", "more"]),
    "all at once": ({"podDisruptionBudget": {"maxUnavailable": 2}}, ["podDisruptionBudget.maxUnavailable", "set less"]),
    "a port of nodes": ({"service": {"nodePort": 30080}}, ["service.nodePort", "service.type"]),
    "an Ingress of nobody": ({"ingress": {"enabled": True}}, ["ingress.hosts", "list hosts"]),
    "rights for all": ({"serviceAccount": {"create": False}}, ["serviceAccount.name", "name an account"]),
    "a section that is none": ({"config": {"port": 8000}}, ["config.port", "section"]),
    "a table too deep": ({"config": {"route": {"a": {"b": {"c": 1}}}}}, ["config.route.a.b", "expected"]),
    "a list in a list": ({"config": {"fleet": {"encode": [["a:1"]]}}}, ["config.fleet.encode", "inner brackets"]),
    "the chart's own key": ({"config": {"server": {"port": 9000}}}, ["config.server.port", "ports.http"]),
    "a secret in the ConfigMap": ({"config": {"engine": {"api_key": "sk"}}}, ["config.engine.api_key", "auth.existingSecret"]),
    "another secret there": ({"config": {"server": {"admin_key": "k"}}}, ["config.server.admin_key", "auth.existingSecret"]),
    "the store's URL there": ({"config": {"share": {"url": "redis://:pw@store:6379"}}}, ["config.share.url", "share.secret"]),
    "a collector's key there": ({"config": {"trace": {"headers": "authorization=Bearer k"}}},
                               ["config.trace.headers", "PD_PROXY__TRACE__HEADERS", "extraEnv"]),
    "engines listed in config": ({"config": {"fleet": {"prefill": ["a:1"]}}}, ["config.fleet.prefill", "discovery.mode=static"]),
    "a selector for DNS": ({"discovery": {"mode": "dns", "decode": {"selector": "a=b"}}}, ["discovery.decode.selector", "discovery.mode=labels"]),
    "a Service for labels": ({"discovery": {"decode": {"service": "d"}}}, ["discovery.decode.service", "dns"]),
    "hosts for labels": ({"discovery": {"decode": {"hosts": ["d:1"]}}}, ["discovery.decode.hosts", "static"]),
    "no labels": ({"discovery": {"decode": {"labels": {"app": None, "role": None}}}}, ["discovery.decode.labels", "set the labels"]),
    "no labels for DNS": ({"discovery": {"mode": "dns", "decode": {"labels": {"app": None, "role": None}}}}, ["discovery.decode.labels", "Service"]),
    "no Service": ({"discovery": {"mode": "services", "prefill": {"service": "p"}}}, ["discovery.decode.service", "name the Service"]),
    "no hosts": ({"discovery": {"mode": "static", "prefill": {"hosts": ["a:1"]}}}, ["discovery.decode.hosts", "list the engines"]),
    "a name of a port for DNS": ({"discovery": {"mode": "dns", "decode": {"ports": ["http"]}}}, ["discovery.decode.ports", "number"]),
    "a namespace for DNS": ({"discovery": {"mode": "dns", "namespace": "engines"}}, ["discovery.namespace", "leave them out"]),
}

# What is planted: the file, what stands there, what shall, a word of what must be said of it, and the one of CASES that shows it, where it is
# not seen before.
FAULTS = {
    "a number as helm happens to have it": ("templates/service.yaml", 'include "pd-proxy.number" .Values.service.port', 'printf "%d" .Values.service.port',
                                            "YAML"),
    "a number of one type": ("templates/_toml.tpl", 'printf "%.0f" .', 'printf "%d" .', "%!d"),
    "a function that is not there": ("templates/service.yaml", "toYaml", "toYml", "toYml"),
    "a line that is not indented": ("templates/deployment.yaml", "nindent 12 }}\n            periodSeconds: 10", "nindent 8 }}\n            periodSeconds: 10",
                                    "YAML"),
    "a field that does not exist": ("templates/pdb.yaml", "maxUnavailable:", "maxUnavailble:", "maxUnavail"),
    "another default": ("values.yaml", "lease_ms: 30000", "lease_ms: 60000", "lease_ms"),
    "a difference that is gone": ("templates/rbac.yaml", "    namespace: {{ .Release.Namespace }}\n", "", "differs no longer"),
    "a value that does nothing": ("templates/deployment.yaml", ".Values.nodeSelector", ".Values.global", "nodeSelector.disk changes nothing", "a pod's extras"),
    "a value that nobody knows": ("values.yaml", "nodeSelector: {}", "nodeSelector: {}\nnodes: 1", "nodes"),
    "a value without a schema": ("values.schema.json", '"podLabels": {"$ref": "#/definitions/texts"},', "", "podLabels"),
    "a patience that is too short": ("templates/deployment.yaml", "20999", "12999", "terminationGracePeriodSeconds"),
    "a check that lets pass": ("templates/_checks.tpl", "4000 -}}", "3999 -}}", "no time to notice"),
    "a check that names nothing": ("templates/_checks.tpl", "service.nodePort is set, but", "this is set, but", "a port of nodes"),
    "rights without watching": ("templates/rbac.yaml", ', "watch"]', "]", "watch"),
    "rights of the other mode": ("templates/rbac.yaml", 'eq .Values.discovery.mode "labels"', 'has .Values.discovery.mode (list "labels" "services")', "rights",
                                 "services in another namespace"),
    "no way to the API server": ("templates/networkpolicy.yaml", '{{- if include "pd-proxy.asksApi" . }}', "{{- if false }}", "NetworkPolicy"),
    "a Secret that is not mounted": ("templates/deployment.yaml", "(list \"tls.crt\" \"tls.key\")", '(list "tls.crt")', "tls.key", "HTTPS"),
    "a pool without a way": ("templates/networkpolicy.yaml", '{{- with concat (dig "pool" "addresses" list .Values.config)', '{{- with concat (list)', "NetworkPolicy",
                             "what is called"),
    "a pod that may be root": ("values.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "pod security"),
    "a user of OpenShift's": ("values-openshift.yaml", "  runAsUser: null\n", "", "OpenShift"),
    "a Secret of nobody": ("templates/secret.yaml", "sha256sum $client", "sha256sum (print $client 1)", "opens nothing"),
    "another version": ("Chart.yaml", 'appVersion: "0.1.0"', 'appVersion: "0.2.0"', "Chart.yaml"),
    "Kthena's other role": ("values-kthena.yaml", "role=decode", "role=prefill", "labels"),
    "EMS's other port": ("values-ems-cce.yaml", "http: 8181", "http: 8000", "clients ask"),
}
