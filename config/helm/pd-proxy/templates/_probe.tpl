{{/* What a probe asks: of (list context path). With certificates of clients, which the kubelet has not, whether the port is open. */}}
{{- define "pd-proxy.probe" -}}
{{- $values := (index . 0).Values -}}
{{- if $values.tls.clientCa -}}
tcpSocket:
  port: admin
{{- else -}}
httpGet:
  path: {{ index . 1 }}
  port: admin
  {{- if $values.tls.secret }}
  scheme: HTTPS
  {{- end }}
{{- end }}
{{- end -}}
