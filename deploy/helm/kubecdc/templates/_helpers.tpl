{{- define "kubecdc.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "kubecdc.account" -}}
{{- default (include "kubecdc.name" .) .Values.serviceAccount.name -}}
{{- end }}

{{- define "kubecdc.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kubecdc.labels" -}}
{{ include "kubecdc.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Not those of the selector: the Service would find it, and the StatefulSet. */ -}}
{{- define "kubecdc.testLabels" -}}
app.kubernetes.io/name: kubecdc-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kubecdc.image" -}}
{{- $repository := required "image.repository is empty: name where you pushed the image that \"make image\" builds" .Values.image.repository -}}
{{- if .Values.image.digest }}{{ $repository }}@{{ .Values.image.digest }}
{{- else }}{{ $repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{- /* The configuration as text: the file as it is, or the values. */ -}}
{{- define "kubecdc.config" -}}
{{- if .Values.configFile }}{{ .Values.configFile }}{{ else }}{{ toYaml .Values.config }}{{ end -}}
{{- end }}

{{- /* Changes when the Pod has to restart: the other keys of the configuration apply while the exporter runs. */ -}}
{{- define "kubecdc.checksum" -}}
{{- if .Values.restartOnEdit -}}
{{- include "kubecdc.config" . | sha256sum -}}
{{- else -}}
{{- $config := include "kubecdc.config" . | fromYaml -}}
{{- list (pick $config "cluster" "election" "state") (dig "admin" "listen" "" $config) (dig "log" "format" "" $config) | toJson | sha256sum -}}
{{- end -}}
{{- end }}

{{- /* Fails where the configuration does not fit the Pod. The schema says so of values; this is for a file. */ -}}
{{- define "kubecdc.checkConfig" -}}
{{- $config := include "kubecdc.config" . | fromYaml -}}
{{- if hasKey $config "Error" }}{{ fail (printf "configFile: %s" (index $config "Error")) }}{{ end -}}
{{- $dir := dig "journal" "dir" "" $config -}}
{{- if ne $dir "/var/lib/kubecdc" }}{{ fail (printf "journal.dir is %q; the volume is at /var/lib/kubecdc" $dir) }}{{ end -}}
{{- $listen := dig "admin" "listen" "" $config -}}
{{- if .Values.highAvailability.enabled -}}
{{- if .Values.persistence.existingClaim }}{{ fail "persistence.existingClaim is for one Pod; with highAvailability neither of the two has a volume" }}{{ end -}}
{{- if not (dig "state" "sink" "" $config) }}{{ fail "highAvailability needs config.state.sink: the name of a sink of kafka or nats, in whose bus the two share what they know" }}{{ end -}}
{{- if not (dig "election" "lease" "" $config) }}{{ fail (printf "highAvailability needs config.election.lease: which Lease the two compete for, such as %s/%s" .Release.Namespace (include "kubecdc.name" .)) }}{{ end -}}
{{- end -}}
{{- if not (hasSuffix ":8080" $listen) }}{{ fail (printf "admin.listen is %q; the Pod's port is 8080, for all addresses \":8080\"" $listen) }}{{ end -}}
{{- if or (hasPrefix "127." $listen) (hasPrefix "localhost" $listen) (hasPrefix "[::1]" $listen) }}{{ fail (printf "admin.listen is %q, where neither the kubelet nor Prometheus reaches it: for all addresses \":8080\"" $listen) }}{{ end -}}
{{- if not (or .Values.highAvailability.enabled .Values.persistence.existingClaim) -}}
{{- $journal := include "kubecdc.bytes" (dig "journal" "maxBytes" "10Gi" $config) | int64 -}}
{{- $reserve := include "kubecdc.bytes" (dig "journal" "reserve" "512Mi" $config) | int64 -}}
{{- if lt (include "kubecdc.bytes" .Values.persistence.size | int64) (add $journal $reserve) -}}
{{- fail (printf "persistence.size is %v, less than journal.maxBytes (%v) and journal.reserve (%v) of the configuration: it needs both, and a quarter of maxBytes more" .Values.persistence.size (dig "journal" "maxBytes" "10Gi" $config) (dig "journal" "reserve" "512Mi" $config)) -}}
{{- end -}}
{{- end -}}
{{- $audit := dig "audit" "webhook" "listen" "" $config -}}
{{- $port := int .Values.auditWebhook.port -}}
{{- if and $audit $port (not (hasSuffix (printf ":%d" $port) $audit)) }}{{ fail (printf "audit.webhook.listen is %q; auditWebhook.port opens port %d of the Pod, and has to be the same" $audit $port) }}{{ end -}}
{{- if and $port (not $audit) }}{{ fail (printf "auditWebhook.port is %d; the configuration has no audit.webhook.listen, for all addresses \":%d\"" $port $port) }}{{ end -}}
{{- if and $port (not .Values.auditWebhook.from) }}{{ fail "auditWebhook.from is empty: name the peers that may connect, such as [{ipBlock: {cidr: 10.0.0.0/24}}] of the API servers" }}{{ end -}}
{{- end }}

{{- /* A size as a number of bytes. */ -}}
{{- define "kubecdc.bytes" -}}
{{- $text := ternary (int64 . | toString) (toString .) (kindIs "float64" .) -}}
{{- $number := regexFind "^[0-9]+" $text -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- mul (int64 $number) (get $units (trimPrefix $number $text) | default 1 | int64) -}}
{{- end }}

{{- /* Fails where the configuration names a resource that no rule allows: what rbac holds was printed for another one. */ -}}
{{- define "kubecdc.checkRights" -}}
{{- $config := include "kubecdc.config" . | fromYaml -}}
{{- $rules := default list .Values.rbac.clusterRules -}}
{{- range .Values.rbac.namespaceRules }}{{ $rules = concat $rules . }}{{ end -}}
{{- range $n, $resource := $config.resources -}}
{{- range $name := $resource.select -}}
{{- $parts := splitn "." 2 $name -}}
{{- $group := regexReplaceAll "^v[0-9]+((alpha|beta)[0-9]+)?[.]" (default "" $parts._1) "" -}}
{{- $allowed := contains "*" $name -}}
{{- range $rule := $rules -}}
{{- if and (or (has $parts._0 $rule.resources) (has "*" $rule.resources)) (or (has $group $rule.apiGroups) (has "*" $rule.apiGroups)) (has "watch" $rule.verbs) -}}
{{- $allowed = true -}}
{{- end -}}
{{- end -}}
{{- if not $allowed -}}
{{- fail (printf "config.resources[%d] selects %s, and rbac has no rule for it: \"exporter rbac --config config.yaml -o helm > rbac.yaml\" prints what is needed, -f rbac.yaml uses it" $n $name) -}}
{{- end -}}
{{- $readable := or (contains "*" $name) (not (contains "." $group)) (hasSuffix ".k8s.io" $group) -}}
{{- range $rule := $rules -}}
{{- if and (or (has "customresourcedefinitions" $rule.resources) (has "*" $rule.resources)) (or (has "apiextensions.k8s.io" $rule.apiGroups) (has "*" $rule.apiGroups)) (or (has "get" $rule.verbs) (has "*" $rule.verbs)) (or (not $rule.resourceNames) (has (printf "%s.%s" $parts._0 $group) $rule.resourceNames)) -}}
{{- $readable = true -}}
{{- end -}}
{{- end -}}
{{- if and (dig "redaction" "strict" false $config) $resource.redactPaths (not $readable) -}}
{{- fail (printf "config.resources[%d] has redactPaths for %s, and rbac has no rule to get its definition, as redaction.strict needs: \"exporter rbac --config config.yaml -o helm > rbac.yaml\" prints what is needed, -f rbac.yaml uses it" $n $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* rbac.namespaceRules, and what it takes to compete for the Lease where they lack it. */ -}}
{{- define "kubecdc.namespaceRules" -}}
{{- $rules := deepCopy (default dict .Values.rbac.namespaceRules) -}}
{{- $lease := dig "election" "lease" "" (include "kubecdc.config" . | fromYaml) -}}
{{- if $lease -}}
{{- $place := splitn "/" 2 $lease -}}
{{- $there := default list (index $rules $place._0) -}}
{{- $has := false -}}
{{- range $there }}{{ if has "leases" .resources }}{{ $has = true }}{{ end }}{{ end -}}
{{- if not $has -}}
{{- $use := dict "apiGroups" (list "coordination.k8s.io") "resources" (list "leases") "resourceNames" (list $place._1) "verbs" (list "get" "update" "watch") -}}
{{- $make := dict "apiGroups" (list "coordination.k8s.io") "resources" (list "leases") "verbs" (list "create") -}}
{{- $_ := set $rules $place._0 (concat $there (list $use $make)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end }}
