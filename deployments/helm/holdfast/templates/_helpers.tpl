{{- define "holdfast.name" -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{- end }}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The pod of worker run and of worker migrate: arguments are a dict of context, secret and args. */ -}}
{{- define "holdfast.container" -}}
image: "{{ .context.Values.image.repository }}:{{ .context.Values.image.tag | default .context.Chart.AppVersion }}"
imagePullPolicy: {{ .context.Values.image.pullPolicy }}
args: {{ toJson .args }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: secrets, mountPath: /run/secrets/holdfast, readOnly: true}
{{- end }}

{{- /* A setting as text. Numbers of YAML are floats to Helm, which writes a million as 1e+06: no integer to a worker. */ -}}
{{- define "holdfast.text" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* The chart sets these variables: a setting of the same name would come twice, and one of the two would be ignored. */ -}}
{{- define "holdfast.environment" -}}
{{- $secret := "it is set from a key of the secret (secrets.worker, secrets.migrator)" -}}
{{- range $name, $why := dict "HOLDFAST_NATS_URL_FILE" $secret "HOLDFAST_REDIS_URL_FILE" $secret "HOLDFAST_POSTGRES_URL_FILE" $secret
  "HOLDFAST_API_TOKEN_FILE" "set secrets.apiToken"
  "HOLDFAST_HTTP_ADDR" "probes and the Service need port 8080; HOLDFAST_API_ADDR gives /v1 another one" -}}
{{- if hasKey $.Values.settings $name }}{{ fail (printf "settings.%s must not be given: %s" $name $why) }}{{ end }}
{{- end }}
{{- if and (hasKey .Values.settings "HOLDFAST_API_ADDR") (not .Values.secrets.apiToken) (not (include "holdfast.apiLoopback" .)) }}
{{- fail "settings.HOLDFAST_API_ADDR must be on loopback, or set secrets.apiToken: without a token /v1 is served there only" }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ include "holdfast.text" $value | quote }}}
{{- end }}
- {name: HOLDFAST_NATS_URL_FILE, value: /run/secrets/holdfast/nats-url}
- {name: HOLDFAST_REDIS_URL_FILE, value: /run/secrets/holdfast/redis-url}
- {name: HOLDFAST_POSTGRES_URL_FILE, value: /run/secrets/holdfast/postgres-url}
{{- end }}

{{- define "holdfast.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}

{{/* Not empty if the setting of the address of /v1 is on loopback. */}}
{{- define "holdfast.apiLoopback" -}}
{{- regexFind "^(127\\.|localhost:|\\[::1\\])" (.Values.settings.HOLDFAST_API_ADDR | default "") -}}
{{- end }}

{{/* The port of /v1, if a setting gives it another one than that of the probes, and an address that others reach. */}}
{{- define "holdfast.apiPort" -}}
{{- $address := .Values.settings.HOLDFAST_API_ADDR | default "" -}}
{{- if and .Values.secrets.apiToken (not (include "holdfast.apiLoopback" .)) (not (hasSuffix ":8080" $address)) -}}
{{- regexFind "[0-9]+$" $address -}}
{{- end -}}
{{- end }}
