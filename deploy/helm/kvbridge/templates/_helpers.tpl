{{- define "kvbridge.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "kvbridge.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains (include "kvbridge.name" .) .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "kvbridge.name" .) | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "kvbridge.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kvbridge.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Of the pods that serve: those of a test or a fit are not. */}}
{{- define "kvbridge.serverLabels" -}}
{{ include "kvbridge.selectorLabels" . }}
app.kubernetes.io/component: server
{{- end }}

{{- define "kvbridge.labels" -}}
{{ include "kvbridge.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: kvbridge
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of an object whose name is that of the release with a suffix: (list . "-suffix"). */}}
{{- define "kvbridge.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "kvbridge.fullname" $root }}{{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "kvbridge.labels" $root | nindent 2 }}
{{- end }}

{{- define "kvbridge.serviceAccountName" -}}
{{- default (ternary (include "kvbridge.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{- define "kvbridge.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- define "kvbridge.tlsSecret" -}}
{{- default (printf "%s-tls" (include "kvbridge.fullname" .)) .Values.tls.existingSecret }}
{{- end }}

{{/* Whether containers or pods of the node reach kvbridged over a unix socket. */}}
{{- define "kvbridge.hasSocket" -}}
{{- if or .Values.memory.enabled (ne .Values.mode "deployment") }}true{{ end }}
{{- end }}

{{/* Whether it listens on the network. A sidecar serves its pod alone. */}}
{{- define "kvbridge.hasNetwork" -}}
{{- if ne .Values.mode "sidecar" }}true{{ end }}
{{- end }}

{{/* Mi of "512Mi", "8Gi", "1GiB" or bytes; empty for anything else. */}}
{{- define "kvbridge.mebibytes" -}}
{{- $text := . | toString | replace " " "" | trimSuffix "B" -}}
{{- if regexMatch "^[0-9]+Gi$" $text }}{{ mul 1024 (trimSuffix "Gi" $text | int64) }}
{{- else if regexMatch "^[0-9]+Mi$" $text }}{{ trimSuffix "Mi" $text | int64 }}
{{- else if regexMatch "^[0-9]+$" $text }}{{ div ($text | int64) 1048576 }}
{{- end }}
{{- end }}

{{/* Mi that transfers and regions may take, without weights. */}}
{{- define "kvbridge.workingMebibytes" -}}
{{- $inflight := dig "limits" "max_inflight_bytes" "1GiB" .Values.config -}}
{{- $regions := ternary .Values.memory.size "0Mi" .Values.memory.enabled -}}
{{- add (include "kvbridge.mebibytes" $inflight | int64) (include "kvbridge.mebibytes" $regions | int64) }}
{{- end }}

{{/* What a schema can't say. */}}
{{- define "kvbridge.check" -}}
{{- if and (include "kvbridge.hasNetwork" .) (not .Values.tls.enabled) (not .Values.tls.allowPlaintext) }}
{{- fail "tls: expected tls.enabled, or tls.allowPlaintext for caches that others on the network may read" }}
{{- end }}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) }}
{{- fail "tls.certManager.issuerRef.name: expected the name of an issuer" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (ne .Values.mode "deployment") }}
{{- fail (printf "autoscaling.enabled: expected mode deployment, got %s" .Values.mode) }}
{{- end }}
{{- if and .Values.memory.enabled (eq .Values.mode "deployment") }}
{{- fail "memory.enabled: expected mode daemonset or sidecar: pods of a deployment share no memory with their callers" }}
{{- end }}
{{- $limit := include "kvbridge.mebibytes" .Values.resources.limits.memory }}
{{- $needed := include "kvbridge.workingMebibytes" . }}
{{- if and $limit (lt ($limit | int64) ($needed | int64)) }}
{{- fail (printf "resources.limits.memory: expected at least %sMi (config.limits.max_inflight_bytes and memory.size, without weights), got %s" $needed .Values.resources.limits.memory) }}
{{- end }}
{{- $bounds := dig "metrics" "latency_buckets" list .Values.config }}
{{- if and .Values.metrics.prometheusRule.enabled $bounds }}
{{- $found := false }}
{{- range $bounds }}{{ if eq (toString .) (toString $.Values.metrics.prometheusRule.latencyObjective) }}{{ $found = true }}{{ end }}{{ end }}
{{- if not $found }}
{{- fail (printf "metrics.prometheusRule.latencyObjective: expected a bound of config.metrics.latency_buckets, got %v" .Values.metrics.prometheusRule.latencyObjective) }}
{{- end }}
{{- end }}
{{- end }}

{{/* kvbridged's configuration file: config, and what the chart's other values mean for it. */}}
{{- define "kvbridge.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $addresses := list }}
{{- if include "kvbridge.hasNetwork" . }}{{ $addresses = append $addresses "0.0.0.0:50061" }}{{ end }}
{{- if include "kvbridge.hasSocket" . }}{{ $addresses = append $addresses "unix:/run/kvbridge/kvbridged.sock" }}{{ end }}
{{- $listen := dict "grpc" $addresses "admin" "0.0.0.0:9464" "health" "0.0.0.0:50062" }}
{{- /* The admin and health ports are for the kubelet and Prometheus, which speak plaintext. gRPC has TLS, or check failed. */}}
{{- $_ := set $listen "allow_plaintext_off_host" true }}
{{- if and .Values.tls.enabled (include "kvbridge.hasNetwork" .) }}
{{- $tls := dict "cert_file" "/etc/kvbridge/tls/tls.crt" "key_file" "/etc/kvbridge/tls/tls.key" }}
{{- if .Values.tls.requireClientCertificate }}
{{- $tls = merge $tls (dict "client_ca_file" "/etc/kvbridge/tls/ca.crt" "require_client_cert" true) }}
{{- end }}
{{- $_ := set $listen "tls" $tls }}
{{- end }}
{{- $_ := set $config "listen" (merge $listen (default dict $config.listen)) }}
{{- if .Values.auth.existingSecret }}
{{- $tokens := dict "tokens_file" (printf "/etc/kvbridge/auth/%s" .Values.auth.key) }}
{{- $_ := set $config "auth" (merge $tokens (default dict $config.auth)) }}
{{- end }}
{{- if .Values.memory.enabled }}
{{- $memory := dict "socket" "/run/kvbridge/memory.sock" "max_bytes" (printf "%sB" .Values.memory.size) }}
{{- $_ := set $config "memory" (merge $memory (default dict $config.memory)) }}
{{- end }}
{{- $config | toYaml }}
{{- end }}

{{- define "kvbridge.probe" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.probes.kind "grpc" -}}
grpc:
  port: 50062
{{- else -}}
httpGet:
  path: {{ index . 1 }}
  port: admin
{{- end }}
{{- end }}

{{/* kvbridged as a container, for a pod of this chart or of another: (include "kvbridged.sidecar" .) with the values,
chart and release of this one. The pod needs the volumes of "kvbridged.volumes". As a native sidecar it goes into
initContainers with restartPolicy Always. */}}
{{- define "kvbridged.sidecar" -}}
name: kvbridged
image: {{ include "kvbridge.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if eq .Values.mode "sidecar" }}
restartPolicy: Always
{{- end }}
args:
  - --config=/etc/kvbridge/config/kvbridged.yaml
  {{- with .Values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  {{- if include "kvbridge.hasNetwork" . }}
  - {name: grpc, containerPort: 50061, protocol: TCP}
  {{- end }}
  - {name: health, containerPort: 50062, protocol: TCP}
  - {name: admin, containerPort: 9464, protocol: TCP}
startupProbe:
  {{- include "kvbridge.probe" (list . "/readyz") | nindent 2 }}
  periodSeconds: {{ .Values.probes.startup.periodSeconds }}
  failureThreshold: {{ .Values.probes.startup.failureThreshold }}
  timeoutSeconds: 5
readinessProbe:
  {{- include "kvbridge.probe" (list . "/readyz") | nindent 2 }}
  periodSeconds: {{ .Values.probes.readiness.periodSeconds }}
  failureThreshold: {{ .Values.probes.readiness.failureThreshold }}
  timeoutSeconds: 5
livenessProbe:
  {{- /* gRPC's health is readiness; only the admin port knows whether it lives. */}}
  httpGet:
    path: /livez
    port: admin
  periodSeconds: {{ .Values.probes.liveness.periodSeconds }}
  failureThreshold: {{ .Values.probes.liveness.failureThreshold }}
  timeoutSeconds: {{ .Values.probes.liveness.timeoutSeconds }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/kvbridge/config, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  - {name: artifacts, mountPath: {{ .Values.artifacts.mountPath }}, readOnly: true}
  {{- if and .Values.tls.enabled (include "kvbridge.hasNetwork" .) }}
  - {name: tls, mountPath: /etc/kvbridge/tls, readOnly: true}
  {{- end }}
  {{- if .Values.auth.existingSecret }}
  - {name: auth, mountPath: /etc/kvbridge/auth, readOnly: true}
  {{- end }}
  {{- if include "kvbridge.hasSocket" . }}
  - {name: run, mountPath: /run/kvbridge}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The volumes of "kvbridged.sidecar". An engine in the same pod mounts `run` to reach its sockets. */}}
{{- define "kvbridged.volumes" -}}
- name: config
  configMap:
    name: {{ include "kvbridge.fullname" . }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
- name: artifacts
  {{- with .Values.artifacts }}
  {{- if .existingClaim }}
  persistentVolumeClaim: {claimName: {{ .existingClaim }}, readOnly: true}
  {{- else if .hostPath }}
  hostPath: {path: {{ .hostPath }}, type: Directory}
  {{- else if .volume }}
  {{- toYaml .volume | nindent 2 }}
  {{- else }}
  emptyDir: {}
  {{- end }}
  {{- end }}
{{- if and .Values.tls.enabled (include "kvbridge.hasNetwork" .) }}
- name: tls
  secret: {secretName: {{ include "kvbridge.tlsSecret" . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.auth.existingSecret }}
- name: auth
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if include "kvbridge.hasSocket" . }}
- name: run
  {{- if eq .Values.mode "daemonset" }}
  hostPath: {path: {{ .Values.memory.hostPath }}, type: Directory}
  {{- else }}
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
  {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
