{{/* Values that contradict each other: each message says what to do. The schema checks types, names and ranges. */}}
{{- define "tunery.checks" -}}
{{- $v := .Values -}}
{{- if include "tunery.severalServers" . -}}
  {{- if eq $v.database.kind "none" -}}
    {{- fail "Several servers need one database: set database.kind to external or bundled." -}}
  {{- end -}}
  {{- if eq $v.storage.kind "none" -}}
    {{- fail "Several servers need one storage of files: set storage.kind to external or bundled." -}}
  {{- end -}}
  {{- if not $v.server.secretKey.existingSecret -}}
    {{- fail "Several servers need the same secret key: set server.secretKey.existingSecret to a Secret with 32 bytes." -}}
  {{- end -}}
  {{- if and (ne $v.autoscaling.kind "none") (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
    {{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas." -}}
  {{- end -}}
{{- end -}}
{{- if and (not $v.server.persistence.enabled) (or (eq $v.database.kind "none") (eq $v.storage.kind "none") (not $v.server.secretKey.existingSecret)) -}}
  {{- fail "Without server.persistence everything would be lost with the pod: set database.kind, storage.kind and server.secretKey.existingSecret, or server.persistence.enabled to true." -}}
{{- end -}}
{{- if and (eq $v.autoscaling.kind "hpa") (eq (int $v.autoscaling.requestsPerReplica) 0) (eq (int $v.autoscaling.cpuPercent) 0) -}}
  {{- fail "An HPA needs a target: set autoscaling.requestsPerReplica or autoscaling.cpuPercent." -}}
{{- end -}}
{{- range $part := list "database" "redis" "storage" -}}
  {{- $values := index $v $part -}}
  {{- if and (eq $values.kind "bundled") (not $values.bundled.existingSecret) -}}
    {{- fail (printf "%s.bundled.existingSecret must name a Secret: docs/guides/kubernetes.md has the command that makes it." $part) -}}
  {{- end -}}
{{- end -}}
{{- range $part := list "database" "redis" -}}
  {{- $values := index $v $part -}}
  {{- if and (eq $values.kind "external") (not $values.external.existingSecret) -}}
    {{- fail (printf "%s.external.existingSecret must name a Secret with the address, because it holds a password." $part) -}}
  {{- end -}}
{{- end -}}
{{- if and (eq $v.storage.kind "external") (not $v.storage.external.url) -}}
  {{- fail "storage.external.url must be an address such as s3://bucket/prefix?endpoint=https://s3.example.com." -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.host) -}}
  {{- fail "ingress.host must be the name under which clients reach the service." -}}
{{- end -}}
{{- if and (eq $v.ray.kind "external") (not $v.ray.external.address) -}}
  {{- fail "ray.external.address must be the address of the dashboard of a Ray cluster, such as http://ray-head:8265." -}}
{{- end -}}
{{- if eq $v.ray.kind "bundled" -}}
  {{- if not $v.ray.bundled.image -}}
    {{- fail "ray.bundled.image must name an image with Ray and the trainer's packages: docs/guides/ray.md." -}}
  {{- end -}}
  {{- if not $v.ray.bundled.existingSecret -}}
    {{- fail "ray.bundled.existingSecret must name a Secret with the cluster's token: anyone who reaches Ray may run programs." -}}
  {{- end -}}
  {{- if and $v.ray.bundled.autoscaling $v.ray.bundled.queueName -}}
    {{- fail "Kueue admits a cluster of a fixed size: set ray.bundled.autoscaling to false, or leave ray.bundled.queueName empty." -}}
  {{- end -}}
  {{- if not $v.ray.bundled.workers -}}
    {{- fail "ray.bundled.workers must list at least one group of machines." -}}
  {{- end -}}
{{- end -}}
{{- $seen := dict -}}
{{- range (include "tunery.engines" . | fromYaml).engines -}}
  {{- if hasKey $seen .name }}{{ fail (printf "Two engines are named %s." .name) }}{{ end -}}
  {{- $_ := set $seen .name true -}}
  {{- if and (ne .autoscaling.kind "none") (gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) -}}
    {{- fail (printf "Engine %s: autoscaling.minReplicas is above autoscaling.maxReplicas." .name) -}}
  {{- end -}}
  {{- if and (eq .autoscaling.kind "keda") (lt (int .autoscaling.minReplicas) 1) -}}
    {{- fail (printf "Engine %s: at zero replicas nobody would hold its requests. Set autoscaling.kind to keda-http, or minReplicas to 1." .name) -}}
  {{- end -}}
  {{- if .adapters.enabled -}}
    {{- if not .adapters.existingClaim -}}
      {{- fail (printf "Engine %s: adapters.existingClaim must name a claim with access mode ReadWriteMany, which the servers write and the engine reads." .name) -}}
    {{- end -}}
    {{- if and (eq .autoscaling.kind "keda-http") (gt (int .autoscaling.maxReplicas) 1) -}}
      {{- fail (printf "Engine %s: adapters are loaded pod by pod, which KEDA's interceptor hides. Set autoscaling.kind to keda, or maxReplicas to 1." .name) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if gt (len (uniq (compact (splitList ";" (include "tunery.adapterClaim" .))))) 1 -}}
  {{- fail "All engines that load adapters share one claim: name the same adapters.existingClaim." -}}
{{- end -}}
{{- end -}}
