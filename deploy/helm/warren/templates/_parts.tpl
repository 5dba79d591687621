{{- define "warren.image" -}}
{{ .image.repository }}:{{ .image.tag | default .version }}
{{- end }}

{{- define "warren.drainSeconds" -}}
{{ if kindIs "invalid" .Values.worker.drainSeconds }}{{ eq .Values.worker.kind "DaemonSet" | ternary 30 3600 }}{{ else }}{{ int .Values.worker.drainSeconds }}{{ end }}
{{- end }}

{{- define "warren.options" -}}
{{- range $name, $value := . }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "warren.secrets" -}}
{{- $secret := .Values.secret.name -}}
{{- if .Values.redis.urlKey }}
- name: WARREN_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: {{ .Values.redis.urlKey }}}}
{{- else }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: redis-password}}
{{- end }}
- name: WARREN_CLUSTER_SECRET
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: cluster-secret}}
- name: WARREN_SECRETS_KEY
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: secrets-key}}
# Only while secrets are changed: docs/cluster.md.
- name: WARREN_OTHER_CLUSTER_SECRETS
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: other-cluster-secrets, optional: true}}
- name: WARREN_OTHER_SECRETS_KEYS
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: other-secrets-keys, optional: true}}
{{- end }}

{{- define "warren.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "warren.address" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- if .ipv6 }}
- {name: WARREN_HOST, value: "::"}
- {name: WARREN_ADVERTISE, value: "[$(POD_IP)]:{{ .port }}"}
{{- else }}
- {name: WARREN_ADVERTISE, value: "$(POD_IP):{{ .port }}"}
{{- end }}
{{- end }}
