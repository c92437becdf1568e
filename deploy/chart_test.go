package deploy_test

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/inspect"
	"github.com/kubecdc/kubecdc/test/parts/build"
)

// variants are the values files that the chart is tried with, by name.
func variants(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart, "ci", "*-values.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no values in ci/ (%v)", err)
	}
	all := map[string]string{}
	for _, file := range files {
		all[strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = file
	}
	return all
}

func TestTheChartLints(t *testing.T) {
	for name, file := range variants(t) {
		if out, complaints, err := helm(t, "lint", "--strict", chart, "--values", file); err != nil {
			t.Errorf("%s: %v\n%s%s", name, err, out, complaints)
		}
	}
}

// TestWrongValuesAreRefusedWithTheirPath before anything reaches a cluster. Values that the schema refuses are set together
// where they are below different top-level keys: all of them are named.
func TestWrongValuesAreRefusedWithTheirPath(t *testing.T) {
	t.Parallel()
	var rounds []map[string]string // paths by the value that is wrong
	for set, path := range map[string]string{
		"image.tag=5":                                              "/image/tag",
		"image.digest=sha256:abc":                                  "/image/digest",
		"image.pullPolicy=Sometimes":                               "/image/pullPolicy",
		"imagePullSecrets[0]=registry":                             "/imagePullSecrets/0",
		"replicaCount=2":                                           "replicaCount",
		"config.resources=null":                                    "/config",
		"config.sinks[0]=nats":                                     "/config/sinks/0",
		"config.resources[0].select=pods":                          "/config/resources/0/select",
		"config.journal.dir=/tmp":                                  "/config/journal/dir",
		"config.admin.listen=127.0.0.1:9090":                       "/config/admin/listen",
		"rbac.create=1":                                            "/rbac/create",
		"rbac.clusterRules[0].verbs[0]=delete":                     "/rbac/clusterRules/0/verbs/0",
		"rbac.namespaceRules.web[0].resources[0]=pods":             "/rbac/namespaceRules/web/0",
		"serviceAccount.name=Exporter":                             "/serviceAccount/name",
		"highAvailability.enabled=true":                            "config.state.sink",
		"highAvailability.replicas=3":                              "/highAvailability",
		"persistence.size=10 GB":                                   "/persistence/size",
		"persistence.class=fast":                                   "/persistence",
		"persistence.accessModes[0]=ReadOnlyMany":                  "/persistence/accessModes/0",
		"extraContainers[0].name=proxy":                            "/extraContainers/0",
		"initContainers[0].image=wait":                             "/initContainers/0",
		"topologySpreadConstraints[0].maxSkew=1":                   "/topologySpreadConstraints/0",
		"hostAliases[0].hostname=kafka":                            "/hostAliases/0",
		"dnsPolicy=Cluster":                                        "/dnsPolicy",
		"dnsConfig.ndots=1":                                        "/dnsConfig",
		"commonLabels.owner=1":                                     "/commonLabels/owner",
		`commonLabels.helm\.sh/chart=x`:                            "/commonLabels",
		`commonLabels.app\.kubernetes\.io/instance=x`:              "/commonLabels",
		`podLabels.app\.kubernetes\.io/name=x`:                     "/podLabels",
		"extraObjects[0].kind=Secret":                              "/extraObjects/0",
		"restartOnEdit=never":                                      "/restartOnEdit",
		"ingress.enabled=true":                                     "ingress.host is empty",
		"ingress.host=Example.com":                                 "/ingress/host",
		"podMonitor.metricRelabelings=drop":                        "/podMonitor/metricRelabelings",
		"secretMounts[0].name=bus":                                 "/secretMounts/0",
		"secretMounts[0].mountPath=etc":                            "/secretMounts/0/mountPath",
		"extraEnv[0].value=x":                                      "/extraEnv/0",
		"extraVolumeMounts[0].name=ca":                             "/extraVolumeMounts/0",
		"goMemLimit=460Mi":                                         "/goMemLimit",
		"terminationGracePeriodSeconds=5":                          "/terminationGracePeriodSeconds",
		"podSecurityContext.runAsUser=0":                           "/podSecurityContext/runAsUser",
		"podSecurityContext.privileged=true":                       "/podSecurityContext",
		"livenessProbe.periodSeconds=0":                            "/livenessProbe/periodSeconds",
		"readinessProbe.initialDelay=3":                            "/readinessProbe",
		"networkPolicy.enabled=yes please":                         "/networkPolicy/enabled",
		"podDisruptionBudget.maxUnavailable=2":                     "/podDisruptionBudget/maxUnavailable",
		"podMonitor.interval=30":                                   "/podMonitor/interval",
		"flowSchema.shares=0":                                      "/flowSchema/shares",
		"auditWebhook.port=8080":                                   "/auditWebhook/port",
		"auditWebhook.type=ExternalName":                           "/auditWebhook/type",
		"auditWebhook.secret=Audit":                                "/auditWebhook/secret",
		"auditWebhook.port=9443":                                   "no audit.webhook.listen",
		"fullnameOverride=9lives":                                  "/fullnameOverride",
		"dashboard.labels.grafana_dashboard=1":                     "/dashboard/labels/grafana_dashboard",
		"nodeSelector.gpu=true":                                    "/nodeSelector/gpu",
		"config.resources[0].select[0]=secrets":                    "config.resources[0] selects secrets, and rbac has no rule for it",
		"configFile=resources: []":                                 "journal.dir",
		"config.sink=x":                                            "additional properties 'sink'",
		"config.sinks[0].nats.urls=x":                              "additional properties 'urls'",
		"config.journal.maxBytes=7XB":                              "/config/journal/maxBytes",
		"config.admin.listen=127.0.0.1:8080":                       "/config/admin/listen",
		"persistence.size=7Gi":                                     "persistence.size is 7Gi",
		"config.journal.maxBytes=50Gi":                             "persistence.size is 10Gi",
		"auditWebhook.port=9443,config.audit.webhook.listen=:9443": "auditWebhook.from is empty",
		"nameOverride=Exporter":                                    "/nameOverride",
		"image.repository=":                                        "image.repository is empty",
		"configFile=[":                                             "configFile: ",
		"rbac.clusterRules=null":                                   "selects pods, and rbac has no rule for it",
		"config.redaction.strict=true,config.resources[0].select[0]=vaults.example.com,config.resources[0].redactPaths[0]=spec.token," +
			"rbac.clusterRules[0].apiGroups[0]=example.com,rbac.clusterRules[0].resources[0]=vaults," +
			"rbac.clusterRules[0].verbs[0]=watch": "config.resources[0] has redactPaths for vaults.example.com",
	} {
		i := slices.IndexFunc(rounds, func(round map[string]string) bool {
			return !slices.ContainsFunc(slices.Collect(maps.Values(round)), func(other string) bool { return sameKey(other, path) })
		})
		if i < 0 {
			i, rounds = len(rounds), append(rounds, map[string]string{})
		}
		rounds[i][set] = path
	}
	for _, round := range rounds {
		args := []string{"template", "kubecdc", chart, "--values", filepath.Join(chart, "ci", "default-values.yaml")}
		for set := range round {
			args = append(args, "--set", set)
		}
		_, complaints, err := helm(t, args...)
		for set, path := range round {
			if err == nil || !strings.Contains(complaints, path) {
				t.Errorf("--set %q: %v, want %s to be named in\n%s", set, err, path, complaints)
			}
		}
	}
}

// sameKey reports whether two refusals cannot be made together: the schema names no path, or both below the same key.
func sameKey(a, b string) bool {
	if !strings.HasPrefix(a, "/") || !strings.HasPrefix(b, "/") {
		return true
	}
	return strings.Split(a, "/")[1] == strings.Split(b, "/")[1]
}

// TestTheLabelsOfAPodAreNotRepeated where it has one of its own of the name that all objects have: parsers refuse that, or
// take any of the two.
func TestTheLabelsOfAPodAreNotRepeated(t *testing.T) {
	var set labelled
	one(t, template(t, "--values", filepath.Join(chart, "ci", "default-values.yaml"), "--set", "commonLabels.team=all,commonLabels.cost=1a,podLabels.team=pod"), "StatefulSet", &set)
	pod := set.Spec.Template.Meta.Labels
	if pod["team"] != "pod" || pod["cost"] != "1a" || pod["app.kubernetes.io/name"] != "kubecdc" || set.Meta.Labels["team"] != "all" {
		t.Errorf("labels %v, of the Pod %v", set.Meta.Labels, pod)
	}
}

// TestTheDocumentedAuditValuesRender: those that the page on the audit trail shows.
func TestTheDocumentedAuditValuesRender(t *testing.T) {
	page, err := os.ReadFile("../docs/audit-trail.md")
	if err != nil {
		t.Fatal(err)
	}
	_, values, _ := strings.Cut(string(page), "```yaml tested by TestTheDocumentedAuditValuesRender\n")
	values, _, found := strings.Cut(values, "```")
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil || !found {
		t.Fatal(found, err)
	}
	all := template(t, "--values", filepath.Join(chart, "ci", "default-values.yaml"), "--values", file)
	if services := slicesOf(all, "kubecdc-audit"); len(services) != 1 || !strings.Contains(string(services[0].text), `clusterIP: "10.96.0.43"`) {
		t.Errorf("the Services are %+v", services)
	}
}

// TestTheChartOpensThePortOfTheAuditWebhook in the Pod, a Service and the NetworkPolicy, with the certificates.
func TestTheChartOpensThePortOfTheAuditWebhook(t *testing.T) {
	values := filepath.Join(chart, "ci", "audit-values.yaml")
	all := template(t, "--values", values)
	type port struct {
		Name          string `yaml:"name"`
		Port          any    `yaml:"port"`
		TargetPort    string `yaml:"targetPort"`
		ContainerPort int    `yaml:"containerPort"`
	}
	var service struct {
		Spec struct {
			Type      string `yaml:"type"`
			ClusterIP string `yaml:"clusterIP"`
			Ports     []port `yaml:"ports"`
		} `yaml:"spec"`
	}
	one(t, slicesOf(all, "kubecdc-audit"), "Service", &service)
	if s := service.Spec; s.ClusterIP != "" || s.Type != "ClusterIP" || len(s.Ports) != 1 || s.Ports[0].Port != 9443 || s.Ports[0].TargetPort != "audit" {
		t.Errorf("Service %+v", s)
	}
	var policy struct {
		Spec struct {
			Ingress []struct {
				Ports []port           `yaml:"ports"`
				From  []map[string]any `yaml:"from"`
			} `yaml:"ingress"`
		} `yaml:"spec"`
	}
	one(t, all, "NetworkPolicy", &policy)
	opened := policy.Spec.Ingress[len(policy.Spec.Ingress)-1]
	if opened.Ports[0].Port != "audit" || len(opened.From) != 1 || opened.From[0]["ipBlock"] == nil {
		t.Errorf("NetworkPolicy %+v", policy)
	}
	text := ""
	for _, m := range all {
		if m.Kind == "StatefulSet" {
			text = string(m.text)
		}
	}
	for _, words := range []string{"containerPort: 9443", "mountPath: /etc/kubecdc-secrets/audit", "secretName: exporter-audit"} {
		if strings.Count(text, words) != 1 {
			t.Errorf("the StatefulSet has %q %d times:\n%s", words, strings.Count(text, words), text)
		}
	}
	_, complaints, err := helm(t, "template", "kubecdc", chart, "--values", values, "--set", "auditWebhook.port=9444")
	if err == nil || !strings.Contains(complaints, "audit.webhook.listen is \":9443\"") {
		t.Errorf("another port: %v\n%s", err, complaints)
	}
}

// loadedFrom is the configuration in a rendered ConfigMap, as the exporter reads it.
func loadedFrom(t *testing.T, text string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

type configMap struct {
	Data map[string]string `yaml:"data"`
}

// granted are the rights of all roles, by the namespace they are for, and their subjects.
func granted(t *testing.T, all []manifest) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, m := range all {
		var object struct {
			Rules    []rule              `yaml:"rules"`
			RoleRef  map[string]string   `yaml:"roleRef"`
			Subjects []map[string]string `yaml:"subjects"`
		}
		if err := yaml.Unmarshal(m.text, &object); err != nil {
			t.Fatal(err)
		}
		switch m.Kind {
		case "Role", "ClusterRole":
			found[m.Kind+" "+m.Meta.Namespace] = rights(object.Rules)
		case "RoleBinding", "ClusterRoleBinding":
			found[m.Kind+" "+m.Meta.Namespace] = []string{object.RoleRef["kind"], object.Subjects[0]["name"], object.Subjects[0]["namespace"]}
		}
	}
	return found
}

// TestTheChartGrantsWhatTheCommandPrints compares the rendered roles with "exporter rbac" for the rendered configuration.
func TestTheChartGrantsWhatTheCommandPrints(t *testing.T) {
	for name, file := range variants(t) {
		if name == "foreign-rights" || name == "audit" { // the certificates of the latter are in the Pod only
			continue
		}
		t.Run(name, func(t *testing.T) {
			all := template(t, "--values", file)
			var m configMap
			one(t, slicesOf(all, "kubecdc"), "ConfigMap", &m)
			o := inspect.RBACOptions{Name: "kubecdc", Namespace: "kubecdc", Account: "kubecdc", Offline: true, Output: inspect.ForKubectl}
			printed, err := inspect.RBAC(t.Context(), loadedFrom(t, m.Data["config.yaml"]), "test", o)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := granted(t, all), granted(t, split(t, printed)); !reflect.DeepEqual(got, want) {
				t.Errorf("granted\n%v\nprinted\n%v", got, want)
			}
		})
	}
}

// TestTheDocumentedCommandsPrintThePoliciesOfTheChart: the line in docs/audit-trail.md names the Pod, the container, its
// program and its configuration, and that program prints the policies for the chart's rules.
func TestTheDocumentedCommandsPrintThePoliciesOfTheChart(t *testing.T) {
	all := slicesOf(template(t, "--set", "image.repository=example.com/kubecdc"), "kubecdc")
	var set struct {
		Metadata struct{ Name string }
		Spec     struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Name string
						Args []string
					}
				}
			}
		}
	}
	one(t, all, "StatefulSet", &set)
	container := set.Spec.Template.Spec.Containers[0]
	page, err := os.ReadFile("../docs/audit-trail.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"--stamp", "admission"} {
		line := "exec " + set.Metadata.Name + "-0 -c " + container.Name + " -- /exporter audit-policy " + part + " " +
			strings.Join(container.Args[1:], " ") + " | kubectl apply -f -"
		if !strings.Contains(string(page), line) {
			t.Errorf("docs/audit-trail.md lacks %s", line)
		}
	}
	var m configMap
	one(t, all, "ConfigMap", &m)
	cfg := loadedFrom(t, m.Data["config.yaml"])

	printed, err := inspect.StampPolicy(t.Context(), cfg, "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range cfg.Resources {
		for _, selected := range rule.Select {
			if name, _, _ := strings.Cut(selected, "."); !strings.Contains(printed, `"`+name+`"`) {
				t.Errorf("the policy lacks %s:\n%s", selected, printed)
			}
		}
	}
}

// slicesOf are the manifests of one name.
func slicesOf(all []manifest, name string) (found []manifest) {
	for _, m := range all {
		if m.Meta.Name == name {
			found = append(found, m)
		}
	}
	return found
}

// TestTheValuesHoldWhatTheCommandPrints: what values.yaml grants is what "exporter rbac -o helm" prints for its
// configuration.
func TestTheValuesHoldWhatTheCommandPrints(t *testing.T) {
	type values struct {
		RBAC struct {
			Cluster    []rule            `yaml:"clusterRules"`
			Namespaces map[string][]rule `yaml:"namespaceRules"`
		} `yaml:"rbac"`
		Config yaml.Node `yaml:"config"`
	}
	var got, want values
	readIn(t, chart, "values.yaml", &got)
	text, err := yaml.Marshal(&got.Config)
	if err != nil {
		t.Fatal(err)
	}
	o := inspect.RBACOptions{Name: "kubecdc", Namespace: "kubecdc", Account: "kubecdc", Offline: true, Output: inspect.ForHelm}
	printed, err := inspect.RBAC(t.Context(), loadedFrom(t, string(text)), "test", o)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(printed), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.RBAC, want.RBAC) {
		t.Errorf("values.yaml grants\n%v\nthe command prints\n%s", got.RBAC, printed)
	}
}

// TestTheDefaultsAreThoseOfTheBase: the chart makes the same Pod as kustomize.
func TestTheDefaultsAreThoseOfTheBase(t *testing.T) {
	all := template(t, "--values", filepath.Join(chart, "ci", "default-values.yaml"), "--set", "redactionSecret=exporter-redaction")
	var rendered, plain configMap
	one(t, all, "ConfigMap", &rendered)
	read(t, "configmap.yaml", &plain)
	var got, want any
	for text, into := range map[string]*any{rendered.Data["config.yaml"]: &got, plain.Data["config.yaml"]: &want} {
		if err := yaml.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("configured\n%v\nbase\n%v", got, want)
	}
	var set, base statefulSet
	one(t, all, "StatefulSet", &set)
	read(t, "statefulset.yaml", &base)
	set.Spec.Template.Spec.Containers[0].Image = base.Spec.Template.Spec.Containers[0].Image
	if !reflect.DeepEqual(set, base) {
		t.Errorf("StatefulSet\n%+v\nbase\n%+v", set, base)
	}
}

// TestOnlyEditsThatNeedItRestartThePod through the checksum on its template: the exporter applies all others while it runs.
func TestOnlyEditsThatNeedItRestartThePod(t *testing.T) {
	t.Parallel()
	checksum := func(sets ...string) string {
		var set labelled
		args := []string{"--values", filepath.Join(chart, "ci", "default-values.yaml")}
		for _, value := range sets {
			args = append(args, "--set", value)
		}
		one(t, template(t, args...), "StatefulSet", &set)
		return set.Spec.Template.Meta.Annotations["checksum/config"]
	}
	before, always := checksum(), checksum("restartOnEdit=true")
	if before == "" {
		t.Fatal("the Pod has no checksum")
	}
	for edit, restarts := range map[string]bool{
		"config.log.level=debug":                 false,
		"config.delivery.drainTimeout=10s":       false,
		"config.journal.maxBytes=1Gi":            false,
		"config.delivery.window=1000":            false,
		"config.log.format=text":                 true,
		"config.cluster.name=prod":               true,
		"config.state.sink=bus":                  true,
		"config.election.lease=kubecdc/exporter": true,
	} {
		if changed := checksum(edit) != before; changed != restarts {
			t.Errorf("%s restarts the Pod: %t, want %t", edit, changed, restarts)
		}
		if checksum("restartOnEdit=true", edit) == always {
			t.Errorf("%s does not restart the Pod with restartOnEdit", edit)
		}
	}
}

// TestTheVolumeIsEnlargedAsDocumented follows docs/operations.md on a real API server: a claim of a StatefulSet never
// changes, so the set is replaced around its Pod.
func TestTheVolumeIsEnlargedAsDocumented(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	render := func(size string) []manifest {
		return template(t, "--values", filepath.Join(chart, "ci", "default-values.yaml"), "--set", "persistence.size="+size)
	}
	c.applyAll(t, split(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: kubecdc}\n"))
	c.applyAll(t, render("10Gi"))
	c.makeBoundClaim(t, "journal-kubecdc-0", "10Gi")
	patch := func(path string) answer {
		return c.call(t, "", http.MethodPatch, path, "application/merge-patch+json", []byte(`{"spec":{"resources":{"requests":{"storage":"20Gi"}}}}`))
	}
	var larger manifest
	for _, m := range render("20Gi") {
		if m.Kind == "StatefulSet" {
			larger = m
		}
	}
	set := c.paths["StatefulSet"] + "kubecdc"
	apply := func() answer {
		return c.call(t, "", http.MethodPatch, set+"?fieldManager=deploy-test", "application/apply-patch+yaml", larger.text)
	}
	if a := apply(); a.code != http.StatusUnprocessableEntity {
		t.Fatalf("the claim of a StatefulSet was changed: %d %s", a.code, a.body)
	}
	if a := patch(c.paths["PersistentVolumeClaim"] + "journal-kubecdc-0"); a.code != http.StatusOK {
		t.Fatalf("enlarge the volume: %d %s", a.code, a.body)
	}
	orphan := []byte(`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Orphan"}`)
	if a := c.call(t, "", http.MethodDelete, set, "application/json", orphan); a.code != http.StatusOK {
		t.Fatalf("delete the StatefulSet: %d %s", a.code, a.body)
	}
	// No garbage collector runs here, which would detach the Pod and end the deletion.
	if a := c.call(t, "", http.MethodPatch, set, "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)); a.code != http.StatusOK {
		t.Fatalf("detach the Pod: %d %s", a.code, a.body)
	}
	if a := apply(); a.code != http.StatusCreated {
		t.Errorf("make the StatefulSet again: %d %s", a.code, a.body)
	}
}

// makeBoundClaim makes a claim as the StatefulSet's controller does, bound to a volume of a class that can be enlarged.
func (c *cluster) makeBoundClaim(t *testing.T, name, size string) {
	t.Helper()
	c.applyAll(t, split(t, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard}
provisioner: example.com/disk
allowVolumeExpansion: true
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  storageClassName: standard
  accessModes: [ReadWriteOnce]
  capacity: {storage: `+size+`}
  csi: {driver: example.com, volumeHandle: disk}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: `+name+`, namespace: kubecdc}
spec:
  storageClassName: standard
  volumeName: disk
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: `+size+`}}
`))
	status := []byte(`{"status":{"phase":"Bound","accessModes":["ReadWriteOnce"],"capacity":{"storage":"` + size + `"}}}`)
	if a := c.call(t, "", http.MethodPatch, c.paths["PersistentVolumeClaim"]+name+"/status", "application/merge-patch+json", status); a.code != http.StatusOK {
		t.Fatalf("bind %s: %d %s", name, a.code, a.body)
	}
}

// TestEverythingAppliesToARealAPIServer renders each variant of the chart, and the base of kustomize with each combination
// of components, and applies it; the Pod has to keep the restricted Pod Security Standard, which the namespace enforces.
func TestEverythingAppliesToARealAPIServer(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.applyAll(t, slices.DeleteFunc(manifests(t, base, "Kustomization"), func(m manifest) bool { return m.Kind == "StatefulSet" }))
	c.defineMonitors(t)
	for _, name := range []string{"web", "shop"} {
		c.applyAll(t, split(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+"}\n"))
	}
	for name, file := range variants(t) {
		t.Run("chart "+name, func(t *testing.T) {
			out, complaints, err := helm(t, "template", "cdc-"+name, chart, "--namespace", "kubecdc", "--values", file)
			if err != nil {
				t.Fatalf("%v\n%s", err, complaints)
			}
			c.applyAndAdmit(t, split(t, out))
		})
	}
	for name, overlay := range overlays(t) {
		t.Run("kustomize "+name, func(t *testing.T) { c.applyAndAdmit(t, split(t, kustomize(t, "build", overlay))) })
	}
}

// applyAndAdmit takes the StatefulSet away again: with volumes and without it is another one, as the claims of one never
// change.
func (c *cluster) applyAndAdmit(t *testing.T, all []manifest) {
	c.applyAll(t, all)
	for _, m := range all {
		if m.Kind == "StatefulSet" {
			if a := c.call(t, "", http.MethodDelete, c.paths[m.Kind]+m.Meta.Name, "application/json", nil); a.code != http.StatusOK {
				t.Errorf("delete %s: %d %s", m.file, a.code, a.body)
			}
		}
	}
	var set podOwner
	one(t, all, "StatefulSet", &set)
	c.admit(t, set.Spec.Template.Spec)
}

// defineMonitors installs the types of the Prometheus operator and waits until they are served.
func (c *cluster) defineMonitors(t *testing.T) {
	t.Helper()
	dir, err := build.OperatorCRDs(t.Context(), "prometheus-operator")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"PodMonitor", "ServiceMonitor", "PrometheusRule"} {
		text, err := os.ReadFile(filepath.Join(dir, "monitoring.coreos.com_"+strings.ToLower(kind)+"s.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		c.applyAll(t, split(t, string(text)))
		var a answer
		if !until(func() bool {
			a = c.call(t, "", http.MethodGet, strings.TrimSuffix(c.paths[kind], "/"), "application/json", nil)
			return a.code == http.StatusOK
		}) {
			t.Fatalf("%s is not served: %d %s", kind, a.code, a.body)
		}
	}
}

// overlays makes an overlay of the base with each combination of components, by their names.
func overlays(t *testing.T) map[string]string {
	t.Helper()
	components, err := filepath.Glob("kustomize/components/*")
	if err != nil || len(components) == 0 {
		t.Fatalf("no components (%v)", err)
	}
	made := map[string]string{}
	for chosen := range 1 << len(components) {
		dir := t.TempDir()
		name, text := "base", "resources: ["+relative(t, dir, base)+"]\ncomponents:\n"
		for i, component := range components {
			if chosen>>i&1 == 1 {
				name += "+" + filepath.Base(component)
				text += "  - " + relative(t, dir, component) + "\n"
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		made[name] = dir
	}
	return made
}

// relative is the path from a directory, which is all that kustomize takes.
func relative(t *testing.T, dir, path string) string {
	t.Helper()
	absolute, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	path, err = filepath.Rel(dir, absolute)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
