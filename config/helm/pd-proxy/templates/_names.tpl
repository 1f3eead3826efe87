{{/* What things are called, and the labels that they have. */}}

{{- define "pd-proxy.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The longest name made of this one adds `-prefillers`, and 63 letters are the most that a Service may have. */}}
{{- define "pd-proxy.fullname" -}}
{{- $name := include "pd-proxy.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Those by which pods are found: they never change. */}}
{{- define "pd-proxy.selectorLabels" -}}
app.kubernetes.io/name: {{ include "pd-proxy.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pd-proxy.labels" -}}
{{ include "pd-proxy.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The chart's own Valkey, and the labels of its pod: none of the gateway's. */}}
{{- define "pd-proxy.valkey" -}}
{{- include "pd-proxy.fullname" . }}-valkey
{{- end -}}

{{- define "pd-proxy.valkeyLabels" -}}
app.kubernetes.io/name: {{ include "pd-proxy.name" . }}-valkey
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* "true" where engines are found through the API server, else nothing. */}}
{{- define "pd-proxy.asksApi" -}}
{{- if has .Values.discovery.mode (list "labels" "services") }}true{{ end -}}
{{- end -}}

{{/* The pods' account: nothing where they need none. */}}
{{- define "pd-proxy.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else if and .Values.serviceAccount.create (include "pd-proxy.asksApi" .) -}}
{{- include "pd-proxy.fullname" . -}}
{{- end -}}
{{- end -}}

{{/* The Secret with keys: the one that is named, the chart's own where clients need keys, or nothing. */}}
{{- define "pd-proxy.secret" -}}
{{- if .Values.auth.existingSecret -}}
{{- .Values.auth.existingSecret -}}
{{- else if .Values.auth.clientKeys -}}
{{- include "pd-proxy.fullname" . -}}
{{- end -}}
{{- end -}}

{{/* A table as YAML, without what is null: nulls of a user stay in some releases of helm. Nothing of an empty one. */}}
{{- define "pd-proxy.given" -}}
{{- $given := dict -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $given $key $value -}}
{{- if kindIs "float64" $value -}}{{- $_ := set $given $key (int64 $value) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if $given -}}{{- toYaml $given -}}{{- end -}}
{{- end -}}
