{{/* The environment of a server. Secrets come from Secrets; $(NAME) is replaced by Kubernetes. */}}
{{- define "tunery.serverEnv" -}}
{{- $v := .Values -}}
{{- $fullname := include "tunery.fullname" . -}}
{{- range $name, $value := $v.server.settings }}
- name: {{ $name }}
  value: {{ include "tunery.text" $value | quote }}
{{- end }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- /* The service counts the node's cores; these are its own. */}}
{{- if and (dig "requests" "cpu" "" $v.server.resources) (not (hasKey $v.server.settings "TUNERY_THREADS")) }}
- name: TUNERY_THREADS
  valueFrom:
    resourceFieldRef:
      containerName: tunery
      resource: requests.cpu
{{- end }}
{{- if $v.server.secretKey.existingSecret }}
- name: TUNERY_SECRET_KEY_FILE
  value: /run/secrets/tunery/secret.key
{{- end }}
{{- with $v.database }}
{{- if eq .kind "external" }}
{{ include "tunery.secretEnv" (list "TUNERY_DATABASE_URL" .external.existingSecret .external.key) }}
{{- else if eq .kind "bundled" }}
{{- /* Not in the URL, where it would have to be escaped. */}}
- name: TUNERY_DATABASE_URL
  value: postgres://tunery@{{ $fullname }}-postgres:5432/tunery
{{ include "tunery.secretEnv" (list "TUNERY_DATABASE_PASSWORD" .bundled.existingSecret .bundled.key) }}
{{- end }}
{{- end }}
{{- with $v.redis }}
{{- if eq .kind "external" }}
{{ include "tunery.secretEnv" (list "TUNERY_REDIS_URL" .external.existingSecret .external.key) }}
{{- else if eq .kind "bundled" }}
- name: TUNERY_REDIS_URL
  value: redis://{{ $fullname }}-redis:6379/0
{{ include "tunery.secretEnv" (list "TUNERY_REDIS_PASSWORD" .bundled.existingSecret .bundled.key) }}
{{- end }}
{{- end }}
{{- with $v.storage }}
{{- if ne .kind "none" }}
- name: TUNERY_STORAGE_URL
  value: {{ ternary .external.url (printf "s3://tunery?endpoint=http://%s-s3:7070&region=us-east-1" $fullname) (eq .kind "external") | quote }}
{{- if and (eq .kind "bundled") (not (hasKey $v.server.settings "TUNERY_STORAGE_DOWNLOADS")) }}
{{- /* Clients cannot reach the bundled storage: downloads go through the service. */}}
- name: TUNERY_STORAGE_DOWNLOADS
  value: proxy
{{- end }}
{{- $credentials := ternary .external .bundled (eq .kind "external") }}
{{- if $credentials.existingSecret }}
{{ include "tunery.secretEnv" (list "AWS_ACCESS_KEY_ID" $credentials.existingSecret $credentials.accessKeyKey) }}
{{ include "tunery.secretEnv" (list "AWS_SECRET_ACCESS_KEY" $credentials.existingSecret $credentials.secretKeyKey) }}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.ray }}
{{- if ne .kind "none" }}
- name: TUNERY_RAY_ADDRESS
  value: {{ include "tunery.rayAddress" $ }}
- name: TUNERY_RAY_SERVICE_URL
  value: {{ default (printf "http://%s.%s.svc:%d" $fullname $.Release.Namespace (int $v.service.port)) .serviceUrl }}
{{- $token := ternary .external .bundled (eq .kind "external") }}
{{- if $token.existingSecret }}
{{ include "tunery.secretEnv" (list "TUNERY_RAY_TOKEN" $token.existingSecret $token.key) }}
{{- end }}
{{- end }}
{{- end }}
{{- range (include "tunery.engines" . | fromYaml).engines }}
{{- if .apiKey.existingSecret }}
{{ include "tunery.secretEnv" (list (include "tunery.engineKeyName" .) .apiKey.existingSecret .apiKey.key) }}
{{- end }}
{{- end }}
{{- range $name, $secret := $v.server.secretEnv }}
{{ include "tunery.secretEnv" (list $name $secret.name $secret.key) }}
{{- end }}
{{- with include "tunery.upstreams" . }}
- name: TUNERY_UPSTREAMS
  value: {{ . | quote }}
{{- end }}
{{- end -}}
