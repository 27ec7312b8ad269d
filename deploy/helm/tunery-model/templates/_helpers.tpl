{{- define "model.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Never changed between versions: selectors are immutable. */}}
{{- define "model.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "model.labels" -}}
{{ include "model.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "model.checks" -}}
{{- $scaling := .Values.autoscaling -}}
{{- if and (ne $scaling.kind "none") (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) -}}
  {{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas." -}}
{{- end -}}
{{- if and (eq (int $scaling.minReplicas) 0) (has $scaling.kind (list "hpa" "keda")) -}}
  {{- fail "At zero replicas the ingress would answer 503 and nobody would see the request: set autoscaling.kind to keda-http, or minReplicas to 1." -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
  {{- fail "ingress.host must be the name under which clients reach the model." -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.apiKey.existingSecret) -}}
  {{- fail "With an ingress anyone could call the model: set apiKey.existingSecret to a Secret with keys, one a line." -}}
{{- end -}}
{{- end -}}
