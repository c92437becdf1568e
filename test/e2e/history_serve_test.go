package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

// servedGroup is the group of the custom resource of this test, which has columns of its own.
const servedGroup = "served.kubecdc.io"

// served is one object: the path of its list, with the namespace as %s, its content, and its status.
type served struct{ list, content, status string }

const template = `"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"nodeSelector":{"disk":"ssd"},"containers":[{"name":"c","image":"i:1"},{"name":"d","image":"j"}]}}`

func podOf(name, spec, status string) served {
	return served{"/api/v1/namespaces/%s/pods", fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"app":%q}},"spec":{"automountServiceAccountToken":false,%s}}`, name, name, spec), status}
}

// servedObjects are of the types that kubectl has columns for, in many states.
var servedObjects = []served{
	podOf("running", `"nodeName":"n1","readinessGates":[{"conditionType":"x.io/y"},{"conditionType":"x.io/z"}],"containers":[{"name":"a","image":"i"},{"name":"b","image":"i"}]`,
		`{"phase":"Running","podIPs":[{"ip":"10.1.2.3"}],"podIP":"10.1.2.3","conditions":[{"type":"Ready","status":"True"},{"type":"x.io/y","status":"True"}],"containerStatuses":[
		{"name":"a","image":"i","imageID":"","ready":true,"restartCount":2,"state":{"running":{}},"lastState":{"terminated":{"exitCode":1,"finishedAt":"2026-01-02T03:04:05Z"}}},
		{"name":"b","image":"i","imageID":"","ready":false,"restartCount":0,"state":{"running":{}}}]}`),
	podOf("crashing", `"containers":[{"name":"a","image":"i"}]`,
		`{"phase":"Running","containerStatuses":[{"name":"a","image":"i","imageID":"","ready":false,"restartCount":7,"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}`),
	podOf("initial", `"initContainers":[{"name":"s","image":"i","restartPolicy":"Always"},{"name":"t","image":"i"},{"name":"u","image":"i"}],"containers":[{"name":"a","image":"i"}]`,
		`{"phase":"Pending","initContainerStatuses":[{"name":"s","image":"i","imageID":"","ready":true,"started":true,"restartCount":1,"state":{"running":{}}},
		{"name":"t","image":"i","imageID":"","ready":false,"restartCount":3,"state":{"running":{}}}],
		"containerStatuses":[{"name":"a","image":"i","imageID":"","ready":false,"restartCount":0,"state":{"waiting":{"reason":"PodInitializing"}}}]}`),
	podOf("failing-init", `"initContainers":[{"name":"t","image":"i"}],"containers":[{"name":"a","image":"i"}]`,
		`{"phase":"Pending","initContainerStatuses":[{"name":"t","image":"i","imageID":"","ready":false,"restartCount":3,"state":{"terminated":{"exitCode":3}}}]}`),
	podOf("pulling-init", `"initContainers":[{"name":"t","image":"i"}],"containers":[{"name":"a","image":"i"}]`,
		`{"phase":"Pending","initContainerStatuses":[{"name":"t","image":"i","imageID":"","ready":false,"restartCount":0,"state":{"waiting":{"reason":"ImagePullBackOff"}}}]}`),
	podOf("sidecar", `"initContainers":[{"name":"s","image":"i","restartPolicy":"Always"}],"containers":[{"name":"a","image":"i"}]`,
		`{"phase":"Running","initContainerStatuses":[{"name":"s","image":"i","imageID":"","ready":true,"started":true,"restartCount":4,"state":{"running":{}}}],
		"containerStatuses":[{"name":"a","image":"i","imageID":"","ready":true,"restartCount":0,"state":{"running":{}}}]}`),
	podOf("completed", `"containers":[{"name":"a","image":"i"}]`,
		`{"phase":"Succeeded","containerStatuses":[{"name":"a","image":"i","imageID":"","ready":false,"restartCount":0,"state":{"terminated":{"exitCode":0,"reason":"Completed"}}}]}`),
	podOf("half-completed", `"containers":[{"name":"a","image":"i"},{"name":"b","image":"i"}]`,
		`{"phase":"Running","containerStatuses":[{"name":"a","image":"i","imageID":"","ready":false,"restartCount":0,"state":{"terminated":{"exitCode":0,"reason":"Completed"}}},
		{"name":"b","image":"i","imageID":"","ready":true,"restartCount":0,"state":{"running":{}}}]}`),
	podOf("killed", `"containers":[{"name":"a","image":"i"}]`,
		`{"phase":"Failed","containerStatuses":[{"name":"a","image":"i","imageID":"","ready":false,"restartCount":0,"state":{"terminated":{"exitCode":137,"signal":9}}}]}`),
	podOf("evicted", `"containers":[{"name":"a","image":"i"}]`, `{"phase":"Failed","reason":"Evicted"}`),
	podOf("gated", `"schedulingGates":[{"name":"x.io/g"}],"containers":[{"name":"a","image":"i"}]`, ""),
	{"/apis/apps/v1/namespaces/%s/deployments", `{"metadata":{"name":"web"},"spec":{"replicas":3,` + template + `}}`, `{"replicas":3,"updatedReplicas":2,"readyReplicas":1,"availableReplicas":1}`},
	{"/apis/apps/v1/namespaces/%s/deployments", `{"metadata":{"name":"new"},"spec":{"replicas":0,` + template + `}}`, ""},
	{"/apis/apps/v1/namespaces/%s/replicasets", `{"metadata":{"name":"web-1"},"spec":{"replicas":3,` + template + `}}`, `{"replicas":3,"readyReplicas":1}`},
	{"/apis/apps/v1/namespaces/%s/statefulsets", `{"metadata":{"name":"db"},"spec":{"serviceName":"db","replicas":2,` + template + `}}`, `{"replicas":2,"readyReplicas":1}`},
	{"/apis/apps/v1/namespaces/%s/daemonsets", `{"metadata":{"name":"log"},"spec":{` + template + `}}`,
		`{"desiredNumberScheduled":4,"currentNumberScheduled":3,"numberReady":2,"numberMisscheduled":0,"updatedNumberScheduled":3,"numberAvailable":1}`},
	{"/apis/batch/v1/namespaces/%s/jobs", `{"metadata":{"name":"once"},"spec":{"completions":3,"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`,
		`{"startTime":"2026-01-02T03:04:05Z","succeeded":1,"uncountedTerminatedPods":{}}`},
	{"/apis/batch/v1/namespaces/%s/jobs", `{"metadata":{"name":"queue"},"spec":{"parallelism":4,"suspend":true,"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`,
		`{"conditions":[{"type":"Suspended","status":"True"}],"uncountedTerminatedPods":{}}`},
	{"/apis/batch/v1/namespaces/%s/cronjobs", `{"metadata":{"name":"nightly"},"spec":{"schedule":"0 3 * * *","timeZone":"Etc/UTC","suspend":true,"jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`,
		`{"lastScheduleTime":"2026-01-02T03:00:00Z","active":[{"kind":"Job","name":"x"}]}`},
	{"/apis/batch/v1/namespaces/%s/cronjobs", `{"metadata":{"name":"never"},"spec":{"schedule":"0 3 * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`, ""},
	{"/api/v1/namespaces/%s/services", `{"metadata":{"name":"inner"},"spec":{"selector":{"b":"c","a":"b"},"externalIPs":["1.2.3.4"],"ports":[{"name":"h","port":80},{"name":"u","port":53,"protocol":"UDP"}]}}`, ""},
	{"/api/v1/namespaces/%s/services", `{"metadata":{"name":"headless"},"spec":{"clusterIP":"None"}}`, ""},
	{"/api/v1/namespaces/%s/services", `{"metadata":{"name":"outer"},"spec":{"type":"LoadBalancer","ports":[{"port":443}]}}`, `{"loadBalancer":{"ingress":[{"ip":"9.9.9.9"},{"hostname":"a.example.com"}]}}`},
	{"/api/v1/namespaces/%s/services", `{"metadata":{"name":"pending"},"spec":{"type":"LoadBalancer","ports":[{"port":443}]}}`, ""},
	{"/api/v1/namespaces/%s/services", `{"metadata":{"name":"elsewhere"},"spec":{"type":"ExternalName","externalName":"example.com"}}`, ""},
	{"/api/v1/namespaces/%s/configmaps", `{"metadata":{"name":"settings"},"data":{"a":"1","b":"2"},"binaryData":{"c":"AAAA"}}`, ""},
	{"/api/v1/namespaces/%s/secrets", `{"metadata":{"name":"password"},"type":"Opaque","data":{"a":"AAAA"}}`, ""},
	{"/api/v1/namespaces/%s/serviceaccounts", `{"metadata":{"name":"robot"}}`, ""},
	{"/api/v1/namespaces/%s/events", `{"metadata":{"name":"e1"},"type":"Warning","reason":"Failed","message":" no luck\n","count":3,"involvedObject":{"kind":"Pod","namespace":"%[1]s","name":"running","fieldPath":"spec"},"source":{"component":"kubelet","host":"n1"},"firstTimestamp":"2026-01-02T03:04:05Z","lastTimestamp":"2026-01-02T03:05:05Z"}`, ""},
	{"/apis/networking.k8s.io/v1/namespaces/%s/ingresses", `{"metadata":{"name":"door"},"spec":{"ingressClassName":"x","tls":[{"hosts":["a"]}],"rules":[{"host":"a"},{"host":"b"},{"host":"c"},{"host":"d"},{"host":"e"}]}}`,
		`{"loadBalancer":{"ingress":[{"hostname":"b.example.com"},{"ip":"9.9.9.9"}]}}`},
	{"/apis/networking.k8s.io/v1/namespaces/%s/ingresses", `{"metadata":{"name":"any"},"spec":{"defaultBackend":{"service":{"name":"x","port":{"number":80}}}}}`, ""},
	{"/api/v1/namespaces/%s/persistentvolumeclaims", `{"metadata":{"name":"disk"},"spec":{"volumeName":"%[1]s-pv","storageClassName":"fast","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`,
		`{"phase":"Bound","accessModes":["ReadWriteOnce","ReadOnlyMany"],"capacity":{"storage":"1Gi"}}`},
	{"/api/v1/namespaces/%s/persistentvolumeclaims", `{"metadata":{"name":"wish"},"spec":{"accessModes":["ReadWriteMany"],"resources":{"requests":{"storage":"1Gi"}}}}`, ""},
	{"/api/v1/persistentvolumes", `{"metadata":{"name":"%[1]s-pv"},"spec":{"capacity":{"storage":"1024Mi"},"accessModes":["ReadWriteMany","ReadWriteOnce"],"claimRef":{"namespace":"%[1]s","name":"disk"},"hostPath":{"path":"/x"}}}`, `{"phase":"Bound"}`},
	{"/api/v1/nodes", `{"metadata":{"name":"%[1]s-n1","labels":{"node-role.kubernetes.io/worker":"","kubernetes.io/role":"db"}},"spec":{"unschedulable":true}}`,
		`{"conditions":[{"type":"Ready","status":"False"}],"addresses":[{"type":"InternalIP","address":"10.0.0.1"}],"nodeInfo":{"machineID":"","systemUUID":"","bootID":"","kernelVersion":"6.1","osImage":"Debian","containerRuntimeVersion":"c://1","kubeletVersion":"v1.37.1","kubeProxyVersion":"","operatingSystem":"linux","architecture":"amd64"}}`},
	{"/api/v1/nodes", `{"metadata":{"name":"%[1]s-n2"}}`, ""},
	{"/apis/" + servedGroup + "/v1/namespaces/%s/things", `{"apiVersion":"` + servedGroup + `/v1","kind":"Thing","metadata":{"name":"t1"},"spec":{"size":3,"on":true,"since":"2026-01-02T03:04:05Z","tags":["x","y"]}}`, ""},
	{"/apis/" + servedGroup + "/v1/namespaces/%s/things", `{"apiVersion":"` + servedGroup + `/v1","kind":"Thing","metadata":{"name":"t2"},"spec":{"size":4}}`, ""},
}

const thingDefinition = `{"metadata":{"name":"things.` + servedGroup + `"},"spec":{"group":"` + servedGroup + `","scope":"Namespaced",
"names":{"plural":"things","singular":"thing","kind":"Thing","shortNames":["th"],"categories":["everything"]},"versions":[{"name":"v1","served":true,"storage":true,
"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},"selectableFields":[],"additionalPrinterColumns":[
{"name":"Size","type":"integer","jsonPath":".spec.size"},{"name":"On","type":"boolean","jsonPath":".spec.on"},{"name":"Tags","type":"string","jsonPath":".spec.tags","priority":1},
{"name":"Wrong","type":"integer","jsonPath":".spec.tags"},{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}]}]}}`

// kubeAPI is an API server, the real one or that of a history.
type kubeAPI struct {
	t      *testing.T
	config *rest.Config
	client *http.Client
}

func newAPI(t *testing.T, kubeconfig string) *kubeAPI {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return &kubeAPI{t, config, client}
}

// do sends a request, and returns the code and the body of the answer.
func (a *kubeAPI) do(method, path, accept, body string) (int, []byte, http.Header) {
	a.t.Helper()
	r, err := http.NewRequestWithContext(a.t.Context(), method, a.config.Host+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := a.client.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return response.StatusCode, b, response.Header
}

// write sends a request that the server has to take.
func (a *kubeAPI) write(method, path, body string) {
	a.t.Helper()
	if code, b, _ := a.do(method, path, "application/json", body); code >= http.StatusMultipleChoices {
		a.t.Fatalf("%s %s: %d %s\n%s", method, path, code, b, body)
	}
}

const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

// answers are the lists of a path, as objects and as a table.
type answers struct {
	items []map[string]any
	table metav1.Table
}

// ages are the columns that depend on when a question is asked.
var ages = []string{"Age", "Last Schedule", "Duration", "Last Seen", "First Seen"}

// ask lists a path, without what differs by the time of the question and by what an exporter leaves out.
func (a *kubeAPI) ask(path string) (all answers) {
	a.t.Helper()
	code, b, _ := a.do(http.MethodGet, path, "application/json", "")
	var list struct{ Items []map[string]any }
	if err := json.Unmarshal(b, &list); err != nil || code != http.StatusOK {
		a.t.Fatalf("GET %s: %d %s", path, code, b)
	}
	for _, o := range list.Items {
		delete(o["metadata"].(map[string]any), "managedFields")
		delete(o, "kind")
		delete(o, "apiVersion")
		if strings.Contains(path, "/secrets") { // whose values are masked
			delete(o, "data")
		}
	}
	all.items = list.Items
	code, b, _ = a.do(http.MethodGet, path, asTable, "")
	if err := json.Unmarshal(b, &all.table); err != nil || code != http.StatusOK {
		a.t.Fatalf("GET %s as a table: %d %s", path, code, b)
	}
	for i := range all.table.ColumnDefinitions {
		column := &all.table.ColumnDefinitions[i]
		column.Description = ""
		for _, row := range all.table.Rows {
			if text, ok := row.Cells[i].(string); ok && slices.Contains(ages, column.Name) && text != "<none>" && text != "<unknown>" && text != "" {
				row.Cells[i] = "an age"
			} else if ok && column.Name == "Restarts" {
				row.Cells[i], _, _ = strings.Cut(text, " (")
			}
		}
	}
	for i := range all.table.Rows {
		all.table.Rows[i].Object.Raw, all.table.Rows[i].Conditions = nil, nil
	}
	return all
}

// moment is what the real API server answered at a revision.
type moment struct {
	revision int64
	lists    map[string]answers // by path
}

// TestServeAnswersAsTheAPIServerDidThen has the real API server list objects of many types at some moments, and compares
// with what is served of these moments afterwards: objects, tables, selections, and what kubectl shows.
func TestServeAnswersAsTheAPIServerDidThen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	s := newFixture(t, []workload.Kind{workload.ConfigMaps}, func(settings *exporter.Settings) {
		settings.Sinks = []map[string]any{{"name": "history", "history": map[string]any{"dir": dir}}}
		settings.Select = []string{"pods", "deployments.apps", "replicasets.apps", "statefulsets.apps", "daemonsets.apps", "jobs.batch", "cronjobs.batch", "services",
			"configmaps", "secrets", "serviceaccounts", "events", "ingresses.networking.k8s.io", "persistentvolumeclaims", "persistentvolumes", "nodes", "namespaces",
			"things." + servedGroup, "customresourcedefinitions.apiextensions.k8s.io"}
	})
	real := newAPI(t, s.controlPlane.Kubeconfig())
	real.write(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", thingDefinition)
	things := s.path("/apis/" + servedGroup + "/v1/namespaces/%s/things")
	await.Condition(t, "the custom resource", arriveWithin, lookEvery, func() string {
		if code, b, _ := real.do(http.MethodGet, things, "application/json", ""); code != http.StatusOK {
			return string(b)
		}
		return ""
	})
	t.Cleanup(func() { s.unserve(real) })
	s.must(s.exporter.Start(t.Context()))
	await.Condition(t, "the first lists", arriveWithin, lookEvery, func() string {
		now, err := s.etcd.Revision(t.Context())
		s.must(err)
		for _, o := range append([]served{{list: "/api/v1/namespaces"}, {list: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"}}, servedObjects...) {
			if _, code := s.stateInHistory(dir, resourceAt(o.list), strconv.FormatInt(now, 10)); code != 0 {
				return fmt.Sprintf("%s: exit %d", o.list, code)
			}
		}
		return ""
	})
	moments := []moment{}
	for _, o := range servedObjects {
		s.serveObject(real, o)
	}
	moments = append(moments, s.look(real))
	real.write(http.MethodDelete, s.path("/api/v1/namespaces/%s/pods/evicted?gracePeriodSeconds=0"), "")
	real.write(http.MethodPatch, s.path("/api/v1/namespaces/%s/pods/running"), `{"metadata":{"finalizers":["x.io/kept"],"labels":{"app":"web"}}}`)
	real.write(http.MethodDelete, s.path("/api/v1/namespaces/%s/pods/running?gracePeriodSeconds=0"), "")
	real.write(http.MethodPatch, s.path("/apis/apps/v1/namespaces/%s/deployments/web"), `{"spec":{"replicas":7}}`)
	real.write(http.MethodDelete, s.path("/api/v1/namespaces/%s/configmaps/settings"), "")
	real.write(http.MethodPatch, things+"/t2", `{"spec":{"tags":"none","on":"yes"}}`)
	moments = append(moments, s.look(real))
	real.write(http.MethodPatch, s.path("/api/v1/namespaces/%s/pods/running"), `{"metadata":{"finalizers":null}}`)
	s.awaitLists(dir, moments[1])
	s.must(s.exporter.Stop())

	for i, m := range moments {
		a := s.serve(dir, "--at", "rv:"+strconv.FormatInt(m.revision, 10))
		for path, want := range m.lists {
			got := a.ask(path)
			if !reflect.DeepEqual(got.items, want.items) {
				t.Errorf("moment %d: %s has\n%v\nand had\n%v", i, path, got.items, want.items)
			}
			if !reflect.DeepEqual(got.table.ColumnDefinitions, want.table.ColumnDefinitions) || !reflect.DeepEqual(got.table.Rows, want.table.Rows) {
				t.Errorf("moment %d: %s is shown as\n%v\n%v\nand was as\n%v\n%v", i, path, got.table.ColumnDefinitions, got.table.Rows, want.table.ColumnDefinitions, want.table.Rows)
			}
		}
		if i == 0 {
			s.askByKubectl(a.kubeAPI, a.kubeconfig)
			s.askByInformer(a.kubeAPI, len(m.lists[s.path("/api/v1/namespaces/%s/pods")].items))
		}
	}
}

// path puts the namespace in a path.
func (s *fixture) path(of string) string { return strings.ReplaceAll(of, "%s", s.name) }

// serveObject makes an object with a status.
func (s *fixture) serveObject(a *kubeAPI, o served) {
	s.t.Helper()
	content := strings.ReplaceAll(o.content, "%[1]s", s.name)
	list := s.path(o.list)
	a.write(http.MethodPost, list, content)
	if o.status != "" {
		var named struct{ Metadata struct{ Name string } }
		s.must(json.Unmarshal([]byte(content), &named))
		a.write(http.MethodPatch, list+"/"+named.Metadata.Name+"/status", `{"status":`+o.status+`}`)
	}
}

// unserve deletes everything: other tests watch the same cluster.
func (s *fixture) unserve(a *kubeAPI) {
	var paths []string
	for _, o := range servedObjects {
		if path := o.list + "?gracePeriodSeconds=0"; strings.Contains(path, "%s") && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	paths = append(paths, "/api/v1/nodes/%s-n1", "/api/v1/nodes/%s-n2", "/api/v1/persistentvolumes/%s-pv",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things."+servedGroup)
	for _, path := range paths {
		r, err := http.NewRequest(http.MethodDelete, a.config.Host+s.path(path), nil)
		if err == nil {
			var response *http.Response
			if response, err = a.client.Do(r); err == nil {
				if err = response.Body.Close(); response.StatusCode != http.StatusOK {
					s.t.Errorf("DELETE %s: %s", s.path(path), response.Status)
				}
			}
		}
		if err != nil {
			s.t.Error(err)
		}
	}
}

// look lists everything.
func (s *fixture) look(a *kubeAPI) moment {
	s.t.Helper()
	m := moment{lists: map[string]answers{}}
	for _, o := range servedObjects {
		path := s.path(o.list)
		if !strings.Contains(path, s.name) { // others of the cluster may change
			path += "?fieldSelector=metadata.name%3D" + s.name + "-" + map[bool]string{true: "pv", false: "n1"}[strings.HasSuffix(path, "volumes")]
		}
		if _, asked := m.lists[path]; !asked {
			m.lists[path] = a.ask(path)
		}
	}
	pods := s.path("/api/v1/namespaces/%s/pods")
	for _, path := range []string{
		pods + "?labelSelector=app+in+(running,killed)", pods + "?labelSelector=app!%3Drunning", pods + "?fieldSelector=status.phase%3DFailed",
		pods + "?fieldSelector=spec.nodeName!%3D", pods + "?fieldSelector=spec.hostNetwork%3Dfalse", "/api/v1/pods?labelSelector=app%3Dkilled",
		s.path("/api/v1/namespaces/%s/events?fieldSelector=involvedObject.name%3Drunning,involvedObject.kind%3DPod"), s.path("/api/v1/namespaces?fieldSelector=metadata.name%3D%s"),
		s.path("/apis/batch/v1/namespaces/%s/jobs?fieldSelector=status.successful%3D0"), s.path("/api/v1/namespaces/%s/secrets?fieldSelector=type%3DOpaque"),
	} {
		m.lists[path] = a.ask(path)
	}
	var err error
	m.revision, err = s.etcd.Revision(s.t.Context())
	s.must(err)
	return m
}

// resourceAt returns the type that a path lists.
func resourceAt(path string) (r oracle.Resource) {
	parts := strings.Split(strings.Split(path, "?")[0], "/")
	if r.Resource = parts[len(parts)-1]; parts[1] == "apis" {
		r.Group = parts[2]
	}
	return r
}

// awaitLists waits until the history has all objects of a moment in their versions.
func (s *fixture) awaitLists(dir string, m moment) {
	s.t.Helper()
	await.Condition(s.t, "the history", arriveWithin, lookEvery, func() string {
		for path, want := range m.lists {
			state, code := s.stateInHistory(dir, resourceAt(path), strconv.FormatInt(m.revision, 10))
			versions := slices.Collect(maps.Values(state))
			for _, o := range want.items {
				version, err := strconv.ParseInt(o["metadata"].(map[string]any)["resourceVersion"].(string), 10, 64)
				s.must(err)
				if code != 0 || !slices.Contains(versions, version) {
					return fmt.Sprintf("%s: exit %d, %v is not in %v", path, code, version, versions)
				}
			}
		}
		return ""
	})
}

// serving is a process that serves a history.
type serving struct {
	*tap
	*kubeAPI
	kubeconfig string
}

// serve has a history served, as the arguments say, until the test ends or it is stopped.
func (s *fixture) serve(dir string, args ...string) *serving {
	s.t.Helper()
	kubeconfig := filepath.Join(s.t.TempDir(), "kubeconfig")
	log := filepath.Join(s.t.TempDir(), "serve.log")
	p, err := process.Start(s.t.Context(), process.Options{Name: "exporter history serve", Path: s.program,
		Args: append([]string{"history", "serve", "--dir", dir, "--kubeconfig", kubeconfig}, args...), Log: log})
	s.must(err)
	s.t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("exporter history serve %v:\n%s", args, s.readFile(log))
		}
	})
	v := &serving{&tap{Process: p, t: s.t, log: log}, nil, kubeconfig}
	v.await("kubectl --kubeconfig " + kubeconfig)
	v.kubeAPI = newAPI(s.t, kubeconfig)
	return v
}

// state lists a type, and returns the revisions of the objects and that of the list, or why that is not known.
func (v *serving) state(r oracle.Resource) (state map[bus.Object]int64, version int64, unknown string) {
	path := "/api/v1/" + r.Resource
	if r.Group != "" {
		path = "/apis/" + r.Group + "/v1/" + r.Resource
	}
	code, b, _ := v.do(http.MethodGet, path, "application/json", "")
	if code == http.StatusGone {
		return nil, 0, string(b)
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(b, &list); err != nil || code != http.StatusOK {
		v.kubeAPI.t.Fatalf("GET %s: %d %s", path, code, b)
	}
	version, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	state = map[bus.Object]int64{}
	for _, o := range list.Items {
		if err == nil {
			state[bus.Object{Group: r.Group, Resource: r.Resource, Namespace: o.Namespace, Name: o.Name}], err = strconv.ParseInt(o.ResourceVersion, 10, 64)
		}
	}
	if err != nil {
		v.kubeAPI.t.Fatal(err)
	}
	return state, version, ""
}

// askByKubectl has kubectl show what is served, and change it.
func (s *fixture) askByKubectl(a *kubeAPI, kubeconfig string) {
	s.t.Helper()
	program, err := build.Kubectl(s.t.Context())
	s.must(err)
	for _, c := range []struct {
		args  string
		wants []string
	}{
		{"get po -o wide", []string{"NOMINATED NODE", "crashing", "CrashLoopBackOff", "Init:1/3", "Init:ExitCode:3", "SchedulingGated", "Evicted"}},
		{"get all -o name", []string{"pod/running", "service/inner", "deployment.apps/web", "job.batch/once"}},
		{"get deploy web -o jsonpath={.spec.replicas}", []string{"3"}},
		{"get th --sort-by=.spec.size", []string{"SIZE", "t1", "t2"}},
		{"get everything -o name", []string{"thing.served.kubecdc.io/t1"}},
		{"get po -l app=killed --show-labels --chunk-size=1", []string{"Signal:9", "app=killed"}},
		{"get po --chunk-size=3 -o name", []string{"pod/completed", "pod/sidecar"}},
		{"describe po running", []string{"Name:", "running", "CrashLoopBackOff"}[:2]},
		{"get pvc,pv,ing,cm,secret,sa,svc,ds,sts,rs,cj", []string{"disk", "Bound", "door", "settings", "password", "robot", "nightly"}},
		{"delete po running", []string{"read-only"}},
		{"label po running a=b", []string{"read-only"}},
		{"create cm new", []string{"read-only"}},
		{"logs running", []string{"no log of pods"}},
		{"get po none", []string{"NotFound"}},
		{"get po --field-selector=spec.x=y", []string{"not supported: spec.x"}},
		{"get leases", []string{"the server doesn't have a resource type"}},
	} {
		args := append([]string{"--kubeconfig", kubeconfig, "--cache-dir", filepath.Join(filepath.Dir(kubeconfig), "cache"), "-n", s.name}, strings.Fields(c.args)...)
		out, _ := exec.CommandContext(s.t.Context(), program, args...).CombinedOutput()
		rest := string(out)
		for _, want := range c.wants {
			if !strings.Contains(rest, want) {
				s.t.Errorf("kubectl %s: no %q in\n%s", c.args, want, out)
			}
		}
	}
	for verb, allowed := range map[string]bool{"list": true, "delete": false} { // as k9s asks
		_, b, _ := a.do(http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "application/json",
			fmt.Sprintf(`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":%q}}}`, verb))
		if !strings.Contains(string(b), fmt.Sprintf(`"allowed":%v`, allowed)) {
			s.t.Errorf("may I %s: %s", verb, b)
		}
	}
	for accept, code := range map[string]int{"application/vnd.kubernetes.protobuf": 406, "application/vnd.kubernetes.protobuf,application/json": 200, "*/*": 200} {
		if got, b, _ := a.do(http.MethodGet, s.path("/api/v1/namespaces/%s/pods"), accept, ""); got != code {
			s.t.Errorf("Accept %s: %d %s", accept, got, b)
		}
	}
}

// askByInformer has an informer hold what is served.
func (s *fixture) askByInformer(a *kubeAPI, pods int) {
	s.t.Helper()
	client, err := dynamic.NewForConfigAndClient(a.config, a.client)
	s.must(err)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, time.Hour, s.name, nil)
	informer := factory.ForResource(schema.GroupVersionResource{Version: "v1", Resource: "pods"})
	stop := make(chan struct{})
	factory.Start(stop)
	await.Condition(s.t, "the informer", arriveWithin, lookEvery, func() string {
		if n := len(informer.Informer().GetStore().List()); !informer.Informer().HasSynced() || n != pods {
			return fmt.Sprintf("it has %d Pods of %d", n, pods)
		}
		return ""
	})
	close(stop)
	factory.Shutdown()
}
