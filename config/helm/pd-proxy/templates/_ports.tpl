{{/* What the NetworkPolicy lets out follows from the configuration: ports, and addresses where these are numbers. */}}

{{/* The ports on engines beside their HTTP, one in a line. */}}
{{- define "pd-proxy.enginePorts" -}}
{{- $events := dig "events" dict .Values.config -}}
{{- $ports := list (include "pd-proxy.number" (dig "dialect" "bootstrap_port" 8998 .Values.config)) -}}
{{- range dig "dialect" "bootstraps" list .Values.config -}}{{- $ports = append $ports (regexFind "[0-9]+$" .) -}}{{- end -}}
{{- if get $events "listen" -}}
{{- $ranks := include "pd-proxy.number" (dig "ranks" 1 $events) | int -}}
{{- range $key, $usual := dict "port" 5557 "replay_port" 5558 -}}
{{- $first := include "pd-proxy.number" (dig $key $usual $events) | int -}}
{{- if $first -}}{{- range $rank := until $ranks -}}{{- $ports = append $ports (toString (add $first $rank)) -}}{{- end -}}{{- end -}}
{{- end -}}
{{- range dig "endpoints" list $events -}}
{{- range regexFindAll "tcp://[^* ]+:[0-9]+" . -1 -}}{{- $ports = append $ports (regexFind "[0-9]+$" .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.networkPolicy.enginePorts -}}{{- $ports = append $ports (include "pd-proxy.number" .) -}}{{- end -}}
{{- join "\n" $ports -}}
{{- end -}}

{{/* Ports at which engines connect to the gateway to publish KV events: "tcp://*:5600" in events.endpoints. One in a line. */}}
{{- define "pd-proxy.eventPorts" -}}
{{- $events := dig "events" dict .Values.config -}}{{- $ports := list -}}
{{- if get $events "listen" -}}
{{- range dig "endpoints" list $events -}}
{{- range regexFindAll "tcp://[*]:[0-9]+" . -1 -}}{{- $ports = append $ports (regexFind "[0-9]+$" .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- join "\n" (uniq $ports) -}}
{{- end -}}

{{/* A rule of egress to some addresses ("host:port", or a URL), or to peers in place of them: of (list addresses peers). */}}
{{- define "pd-proxy.egress" -}}
{{- $addresses := index . 0 -}}{{- $to := index . 1 -}}{{- $ports := list -}}{{- $blocks := list -}}{{- $names := false -}}
{{- range $addresses -}}
{{- $rest := regexReplaceAll "^[a-z]+://" . "" | splitList "/" | first -}}
{{- $port := regexFind ":[0-9]+$" $rest | trimPrefix ":" -}}
{{- $host := regexReplaceAll ":[0-9]+$" $rest "" | trimAll "[]" -}}
{{- $ports = append $ports (default (ternary "443" "80" (hasPrefix "https:" .)) $port) -}}
{{- if regexMatch "^[0-9]+([.][0-9]+){3}$" $host -}}{{- $blocks = append $blocks (dict "ipBlock" (dict "cidr" (printf "%s/32" $host))) -}}
{{- else if contains ":" $host -}}{{- $blocks = append $blocks (dict "ipBlock" (dict "cidr" (printf "%s/128" $host))) -}}
{{- else -}}{{- $names = true -}}{{- end -}}
{{- end -}}
- ports:
    {{- range uniq $ports }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  {{- if or $to (not $names) }}
  to:
    {{- toYaml (default (uniq $blocks) $to) | nindent 4 }}
  {{- end }}
{{- end -}}
