{{/* The configuration: values in, TOML out. */}}

{{/* A number in decimal: from a values file it is a float or a JSON number, from --set an integer. */}}
{{- define "pd-proxy.number" -}}
{{- if not (kindIs "float64" .) -}}
{{- . -}}
{{- else if eq . (floor .) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* A text, number, boolean, or list of these; of (list name value). JSON's texts are TOML's. */}}
{{- define "pd-proxy.tomlValue" -}}
{{- $name := index . 0 -}}{{- $value := index . 1 -}}
{{- if kindIs "slice" $value -}}
{{- $parts := list -}}
{{- range $value -}}
{{- if kindIs "slice" . -}}{{- fail (printf "%s is a list with lists in it: leave out the inner brackets" $name) -}}{{- end -}}
{{- $parts = append $parts (include "pd-proxy.tomlValue" (list $name .)) -}}
{{- end -}}
{{- printf "[%s]" (join ", " $parts) -}}
{{- else if or (kindIs "map" $value) (kindIs "invalid" $value) -}}
{{- fail (printf "%s has %s: expected a text, a number, a boolean or a list of these" $name (toJson $value)) -}}
{{- else if and (kindIs "string" $value) (not (typeIs "json.Number" $value)) -}}
{{- toJson $value -}}
{{- else -}}
{{- include "pd-proxy.number" $value -}}
{{- end -}}
{{- end -}}

{{/* What [discovery] and [fleet] say of engines on these sides, as JSON; of (list root sides). */}}
{{- define "pd-proxy.discovery" -}}
{{- $root := index . 0 -}}{{- $sides := index . 1 -}}
{{- $of := $root.Values.discovery -}}{{- $fullname := include "pd-proxy.fullname" $root -}}
{{- $fleet := dict -}}{{- $discovery := dict -}}{{- $kubernetes := dict -}}
{{- range $role, $many := dict "prefill" "prefillers" "decode" "decoders" -}}
{{- $side := index $sides $role -}}
{{- $ports := list -}}{{- range $side.ports -}}{{- $ports = append $ports (include "pd-proxy.number" .) -}}{{- end -}}
{{- if eq $of.mode "static" -}}
{{- $_ := set $fleet $role $side.hosts -}}
{{- else if eq $of.mode "dns" -}}
{{- $names := list -}}
{{- range $ports -}}{{- $names = append $names (printf "%s:%s" (default (printf "%s-%s" $fullname $many) $side.service) .) -}}{{- end -}}
{{- $_ := set $discovery (printf "%s_dns" $role) $names -}}
{{- else -}}
{{- if eq $of.mode "services" -}}
{{- $_ := set $kubernetes (printf "%s_service" $role) $side.service -}}
{{- else -}}
{{- $pairs := list -}}{{- range $key, $value := $side.labels -}}{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}{{- end -}}
{{- $_ := set $kubernetes (printf "%s_selector" $role) (default (join "," $pairs) $side.selector) -}}
{{- end -}}
{{- $_ := set $kubernetes (printf "%s_ports" $role) $ports -}}
{{- end -}}
{{- end -}}
{{- if $kubernetes -}}
{{- if $of.namespace -}}{{- $_ := set $kubernetes "namespace" $of.namespace -}}{{- end -}}
{{- if ne $of.scheme "http" -}}{{- $_ := set $kubernetes "scheme" $of.scheme -}}{{- end -}}
{{- $_ := set $discovery "kubernetes" $kubernetes -}}
{{- end -}}
{{- dict "fleet" $fleet "discovery" $discovery | toJson -}}
{{- end -}}

{{/* The sides of a fleet of .Values.fleets, with what they don't say from .Values.discovery, as JSON; of (list root fleet). */}}
{{- define "pd-proxy.fleetSides" -}}
{{- $root := index . 0 -}}{{- $fleet := index . 1 -}}
{{- $sides := dict -}}
{{- range $role := list "prefill" "decode" -}}
{{- $usual := dict "labels" dict "selector" "" "service" "" "hosts" list "ports" (index $root.Values.discovery $role).ports -}}
{{- $_ := set $sides $role (mergeOverwrite $usual (deepCopy (default dict (get $fleet $role)))) -}}
{{- end -}}
{{- $sides | toJson -}}
{{- end -}}

{{/* Sections as TOML, each name after a prefix; of (list prefix sections name-of-the-value). */}}
{{- define "pd-proxy.sections" -}}
{{- $prefix := index . 0 -}}{{- $sections := index . 1 -}}{{- $named := index . 2 -}}
{{- range $section, $keys := $sections -}}
{{- $lines := list -}}{{- $tables := dict -}}
{{- range $key, $value := $keys -}}
{{- if kindIs "map" $value -}}
{{- $_ := set $tables $key $value -}}
{{- else -}}
{{- $lines = append $lines (printf "%s = %s" $key (include "pd-proxy.tomlValue" (list (printf "%s.%s.%s" $named $section $key) $value))) -}}
{{- end -}}
{{- end -}}
{{- if $lines }}
[{{ $prefix }}{{ $section }}]
{{ join "\n" $lines }}
{{ end -}}
{{- range $key, $table := $tables }}
[{{ $prefix }}{{ $section }}.{{ $key }}]
{{- range $inner, $value := $table }}
{{ $inner }} = {{ include "pd-proxy.tomlValue" (list (printf "%s.%s.%s.%s" $named $section $key $inner) $value) }}
{{- end }}
{{ end -}}
{{- end -}}
{{- end -}}

{{/* Every section that the chart and its user set. Values are laid over each other here and nowhere else. */}}
{{- define "pd-proxy.toml" -}}
{{- $server := dict "host" .Values.host "port" .Values.ports.http "admin_host" .Values.host "admin_port" .Values.ports.admin -}}
{{- $_ := set $server "lame_duck_ms" .Values.shutdown.lameDuckMs -}}{{- $_ := set $server "drain_ms" .Values.shutdown.drainMs -}}
{{- $own := dict -}}
{{- if not .Values.fleets -}}{{- $own = include "pd-proxy.discovery" (list . .Values.discovery) | fromJson -}}{{- end -}}
{{- $_ := set $own "server" $server -}}
{{- if .Values.auth.clientKeys -}}{{- $_ := set $own "auth" (dict "keys_file" "/etc/pd-proxy-keys/keys.toml") -}}{{- end -}}
{{- if .Values.tls.secret -}}
{{- $tls := dict "cert" "/etc/pd-proxy-tls/tls.crt" "key" "/etc/pd-proxy-tls/tls.key" -}}
{{- if .Values.tls.clientCa -}}{{- $_ := set $tls "client_ca" "/etc/pd-proxy-tls/ca.crt" -}}{{- end -}}
{{- $_ := set $own "tls" $tls -}}
{{- end -}}
{{- include "pd-proxy.sections" (list "" (mergeOverwrite $own (deepCopy .Values.config)) "config") -}}
{{- range $name, $fleet := .Values.fleets -}}
{{- $sides := include "pd-proxy.fleetSides" (list $ $fleet) | fromJson -}}
{{- $engines := dict -}}
{{- if or (get $fleet "prefill") (get $fleet "decode") -}}
{{- $engines = include "pd-proxy.discovery" (list $ $sides) | fromJson -}}
{{- end -}}
{{- $sections := mergeOverwrite $engines (deepCopy (default dict (get $fleet "config"))) -}}
{{- include "pd-proxy.sections" (list (printf "fleets.%s." $name) $sections (printf "fleets.%s.config" $name)) -}}
{{- end -}}
{{- end -}}
