{{/* What the schema of values can't say. Each message names the value and the fix. */}}

{{/* Keys of the configuration that have values of their own, and which. */}}
{{- define "pd-proxy.ownKeys" -}}
server.host: "set host"
server.port: "set ports.http"
server.admin_host: "set host"
server.admin_port: "set ports.admin"
server.lame_duck_ms: "set shutdown.lameDuckMs"
server.drain_ms: "set shutdown.drainMs"
server.admin_key: "it is a secret: put ADMIN_API_KEY into the Secret that auth.existingSecret names"
auth.keys_file: "set auth.existingSecret and auth.clientKeys"
engine.api_key: "it is a secret: put OPENAI_API_KEY into the Secret that auth.existingSecret names"
trace.headers: "it is a secret: set PD_PROXY__TRACE__HEADERS in extraEnv, with valueFrom and the secretKeyRef of a Secret"
share.url: "it is a secret: put it into a Secret as url, and name that in share.secret, which sets PD_PROXY__SHARE__URL; or set share.valkey.enabled"
tls.cert: "set tls.secret"
tls.key: "set tls.secret"
tls.client_ca: "set tls.clientCa"
fleet.prefill: "set discovery.mode=static and discovery.prefill.hosts"
fleet.decode: "set discovery.mode=static and discovery.decode.hosts"
discovery.prefill_dns: "set discovery.mode=dns and discovery.prefill"
discovery.decode_dns: "set discovery.mode=dns and discovery.decode"
discovery.kubernetes: "set discovery.mode=labels or services, and discovery.prefill and discovery.decode"
{{- end -}}

{{- define "pd-proxy.checkConfig" -}}
{{- range $section, $keys := .Values.config -}}
{{- if not (kindIs "map" $keys) -}}
{{- fail (printf "config.%s is %s: expected a section with keys, as in config.route.scrape_ms" $section (toJson $keys)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $fix := include "pd-proxy.ownKeys" . | fromYaml -}}
{{- $parts := splitList "." $name -}}
{{- if hasKey (default dict (index $.Values.config (first $parts))) (last $parts) -}}
{{- fail (printf "config.%s is not for config: %s" $name $fix) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Engines of fleets: each side says where they are, in the way of discovery.mode. */}}
{{- define "pd-proxy.checkFleets" -}}
{{- $of := .Values.discovery -}}
{{- range $name, $fleet := .Values.fleets -}}
{{- $isRemote := hasKey (default dict (get (default dict (get $fleet "config")) "fleet")) "remote" -}}
{{- range $role := list "prefill" "decode" -}}
{{- $side := default dict (get $fleet $role) -}}
{{- $needs := dict "labels" "labels or selector" "services" "service" "dns" "service" "static" "hosts" -}}
{{- $service := get $side "service" -}}
{{- $says := dict "labels" (or (get $side "labels") (get $side "selector")) "services" $service "dns" $service "static" (get $side "hosts") -}}
{{- if and (not $isRemote) (not (index $says $of.mode)) -}}
{{- fail (printf "fleets.%s.%s says nothing of its engines: with discovery.mode=%s set its %s" $name $role $of.mode (index $needs $of.mode)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pd-proxy.checkDiscovery" -}}
{{- $of := .Values.discovery -}}
{{- range $role := list "prefill" "decode" -}}
{{- $side := index $of $role -}}{{- $name := printf "discovery.%s" $role -}}
{{- if and $side.selector (ne $of.mode "labels") -}}
{{- fail (printf "%s.selector is set, but discovery.mode is %s: leave it out, or set discovery.mode=labels" $name $of.mode) -}}
{{- end -}}
{{- if and $side.service (not (has $of.mode (list "services" "dns"))) -}}
{{- fail (printf "%s.service is set, but discovery.mode is %s: leave it out, or set discovery.mode to services or dns" $name $of.mode) -}}
{{- end -}}
{{- if and $side.hosts (ne $of.mode "static") -}}
{{- fail (printf "%s.hosts is set, but discovery.mode is %s: leave it out, or set discovery.mode=static" $name $of.mode) -}}
{{- end -}}
{{- if and (eq $of.mode "labels") (not $side.selector) (not $side.labels) -}}
{{- fail (printf "%s.labels is empty: set the labels of the pods, or %s.selector" $name $name) -}}
{{- end -}}
{{- if and (eq $of.mode "services") (not $side.service) -}}
{{- fail (printf "%s.service is empty: name the Service whose EndpointSlices list the engines" $name) -}}
{{- end -}}
{{- if and (eq $of.mode "dns") (not $side.service) (not $side.labels) -}}
{{- fail (printf "%s.labels is empty: set the labels of the pods, or a headless Service by %s.service" $name $name) -}}
{{- end -}}
{{- if and (eq $of.mode "static") (not $side.hosts) -}}
{{- fail (printf "%s.hosts is empty: list the engines, as in [\"10.0.0.1:8000\"]" $name) -}}
{{- end -}}
{{- if eq $of.mode "dns" -}}
{{- range $side.ports -}}
{{- if not (regexMatch "^[0-9]+$" (include "pd-proxy.number" .)) -}}
{{- fail (printf "%s.ports has %q: the DNS knows no names of ports, give its number" $name (toString .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (not (include "pd-proxy.asksApi" .)) (or $of.namespace (ne $of.scheme "http")) -}}
{{- fail (printf "discovery.namespace and discovery.scheme are for discovery.mode labels and services, it is %s: leave them out" $of.mode) -}}
{{- end -}}
{{- end -}}

{{/* "true" where helm asks a cluster in which the namespace is: it has an account `default`. `helm template` asks none. */}}
{{- define "pd-proxy.clusterIsThere" -}}
{{- if lookup "v1" "ServiceAccount" .Release.Namespace "default" }}true{{ end -}}
{{- end -}}

{{- define "pd-proxy.check" -}}
{{- include "pd-proxy.checkConfig" . -}}
{{- if .Values.fleets -}}{{- include "pd-proxy.checkFleets" . -}}{{- else -}}{{- include "pd-proxy.checkDiscovery" . -}}{{- end -}}
{{- if and .Values.share.secret .Values.share.valkey.enabled -}}
{{- fail "share.secret and share.valkey.enabled are both set: replicas share one store, leave one of them out" -}}
{{- end -}}
{{- if eq (include "pd-proxy.number" .Values.ports.http) (include "pd-proxy.number" .Values.ports.admin) -}}
{{- fail (printf "ports.http and ports.admin are both %s: give operators a port of their own" (include "pd-proxy.number" .Values.ports.http)) -}}
{{- end -}}
{{- if and .Values.auth.existingSecret (include "pd-proxy.clusterIsThere" .) -}}
{{- $secret := lookup "v1" "Secret" .Release.Namespace .Values.auth.existingSecret -}}
{{- if not $secret -}}
{{- fail (printf "auth.existingSecret is %s, and there is no such Secret in %s: make it (pd-proxy api-key new --name search-team >> keys.toml; kubectl create secret generic %s -n %s --from-file=keys.toml), or leave the value empty, and the chart makes one" .Values.auth.existingSecret .Release.Namespace .Values.auth.existingSecret .Release.Namespace) -}}
{{- end -}}
{{- if and .Values.auth.clientKeys (not (hasKey (default dict $secret.data) "keys.toml")) -}}
{{- fail (printf "auth.existingSecret is %s, which has no keys.toml: add it, or set auth.clientKeys=false, and everybody may ask" .Values.auth.existingSecret) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tls.clientCa (not .Values.tls.secret) -}}
{{- fail "tls.clientCa is true and tls.secret is empty: name a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if le (int64 (include "pd-proxy.number" .Values.shutdown.lameDuckMs)) 4000 -}}
{{- fail (printf "shutdown.lameDuckMs is %s: it takes 4000 ms until readiness has failed, set more" (include "pd-proxy.number" .Values.shutdown.lameDuckMs)) -}}
{{- end -}}
{{- $replicas := int64 (include "pd-proxy.number" .Values.replicaCount) -}}
{{- if and .Values.podDisruptionBudget.enabled (gt $replicas 1) (ge (int64 (include "pd-proxy.number" .Values.podDisruptionBudget.maxUnavailable)) $replicas) -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable is %s with replicaCount %d: all could go at once, set less" (include "pd-proxy.number" .Values.podDisruptionBudget.maxUnavailable) $replicas) -}}
{{- end -}}
{{- if and .Values.service.nodePort (eq .Values.service.type "ClusterIP") -}}
{{- fail "service.nodePort is set, but service.type is ClusterIP: set service.type to NodePort or LoadBalancer, or leave it out" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.enabled is true and ingress.hosts is empty: list hosts, as in [{host: llm.example.com, path: /}]" -}}
{{- end -}}
{{- if and (include "pd-proxy.asksApi" .) .Values.rbac.create (not (include "pd-proxy.serviceAccount" .)) -}}
{{- fail "serviceAccount.create is false and serviceAccount.name is empty: all pods of the namespace would get the rights; name an account" -}}
{{- end -}}
{{- end -}}
