{{- define "tunery.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tunery.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "tunery.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tunery.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select pods: never changed between versions, because selectors are immutable. [root, component] */}}
{{- define "tunery.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "tunery.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tunery.labels" -}}
{{- $root := index . 0 -}}
{{ include "tunery.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{/* Labels of pods: not the chart's version, which would restart them for nothing. */}}
{{- define "tunery.podLabels" -}}
{{ include "tunery.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end -}}

{{- define "tunery.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tunery.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tunery.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- if and (gt (int .Values.server.gpu.count) 0) (not .Values.image.tag) -}}
{{- $tag = printf "%s-cuda" .Chart.AppVersion -}}
{{- end -}}
{{ .Values.image.repository }}:{{ $tag }}
{{- end -}}

{{- define "tunery.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tunery.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Pod and container of Pod Security 'restricted'. The argument is the user's id, which owns the volumes too. */}}
{{- define "tunery.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* The argument: whether the root file system is read-only. */}}
{{- define "tunery.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: {{ . }}
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Requests and limits, with GPUs: {resources, gpu}. */}}
{{- define "tunery.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if gt (int .gpu.count) 0 -}}
{{- $gpu := dict .gpu.resource (int .gpu.count) -}}
{{- $_ := set $resources "limits" (merge $gpu (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* An environment variable from a Secret: [name, secret, key]. */}}
{{- define "tunery.secretEnv" -}}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ index . 1 }}
      key: {{ index . 2 }}
{{- end -}}

{{/* Whether several servers may run. */}}
{{- define "tunery.severalServers" -}}
{{- if or (gt (int .Values.server.replicas) 1) (ne .Values.autoscaling.kind "none") -}}true{{- end -}}
{{- end -}}

{{/* The engines with their defaults filled in: a dictionary, because templates return text. */}}
{{- define "tunery.engines" -}}
{{- $engines := list -}}
{{- range .Values.engines -}}
{{- $engines = append $engines (mergeOverwrite (deepCopy $.Values.engineDefaults) (deepCopy .)) -}}
{{- end -}}
{{- toYaml (dict "engines" $engines) -}}
{{- end -}}

{{/* Servers that this release's engines may have at most. */}}
{{- define "tunery.engineReplicas" -}}
{{- if eq .autoscaling.kind "none" -}}{{ int .replicas }}{{- else -}}{{ int .autoscaling.maxReplicas }}{{- end -}}
{{- end -}}

{{/* TUNERY_UPSTREAMS. Each pod of an engine has an entry: the gateway balances, retries and loads adapters by pod. An
engine that scales to zero has one entry, KEDA's interceptor, which holds requests while a pod starts. */}}
{{- define "tunery.upstreams" -}}
{{- $entries := list -}}
{{- $fullname := include "tunery.fullname" . -}}
{{- range (include "tunery.engines" . | fromYaml).engines -}}
{{- $name := printf "%s-engine-%s" $fullname .name -}}
{{- $hosts := list -}}
{{- if eq .autoscaling.kind "keda-http" -}}
{{- $hosts = list (printf "%s-door:%d" $name (int $.Values.kedaHttp.interceptorPort)) -}}
{{- else -}}
{{- range $index := until (int (include "tunery.engineReplicas" .)) -}}
{{- $hosts = append $hosts (printf "%s-%d.%s:8000" $name $index $name) -}}
{{- end -}}
{{- end -}}
{{- $engine := . -}}
{{- range $hosts -}}
{{- $entry := dict "model" $engine.model "url" (printf "http://%s" .) "kind" "vllm" "max_concurrent" (int $engine.maxConcurrent) -}}
{{- if $engine.alsoLocal }}{{ $_ := set $entry "also_local" true }}{{ end -}}
{{- if $engine.adapters.enabled }}{{ $_ := set $entry "adapters" true }}{{ $_ := set $entry "adapter_root" "/mnt/tunery/$(POD_NAME)" }}{{ end -}}
{{- if $engine.apiKey.existingSecret }}{{ $_ := set $entry "api_key_env" (include "tunery.engineKeyName" $engine) }}{{ end -}}
{{- $entries = append $entries $entry -}}
{{- end -}}
{{- end -}}
{{- $entries = concat $entries .Values.upstreams -}}
{{- if $entries }}{{ toJson $entries }}{{ end -}}
{{- end -}}

{{- define "tunery.engineKeyName" -}}
{{- printf "ENGINE_KEY_%s" (.name | upper | replace "-" "_") -}}
{{- end -}}

{{/* The claim that servers and engines share for adapters, if an engine loads any. */}}
{{- define "tunery.adapterClaim" -}}
{{- range (include "tunery.engines" . | fromYaml).engines -}}
{{- if .adapters.enabled }}{{ .adapters.existingClaim }};{{ end -}}
{{- end -}}
{{- end -}}

{{- define "tunery.rayAddress" -}}
{{- if eq .Values.ray.kind "bundled" -}}
http://{{ include "tunery.fullname" . }}-ray-head-svc:8265
{{- else -}}
{{ .Values.ray.external.address }}
{{- end -}}
{{- end -}}

{{/* A value as text. Helm reads numbers as floats, which print from 1,000,000 up as 1e+06. */}}
{{- define "tunery.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ toString . }}{{ end }}
{{- end }}
