package history

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
)

// podMix makes changes of Pods of 6 to 9 KB: three in four change the status, as a kubelet does.
type podMix struct {
	random  *rand.Rand
	objects []podState
	number  int
}

type podState struct {
	owner, node, ip, uid string
	restarts             int
	at                   time.Time
}

func newPodMix(objects int) *podMix {
	m := &podMix{random: rand.New(rand.NewPCG(1, 2)), objects: make([]podState, objects)}
	for i := range m.objects {
		m.objects[i] = podState{owner: fmt.Sprintf("app-%d-%s", i/20, m.hex(5)), node: fmt.Sprint("node-", m.random.IntN(100)),
			ip: fmt.Sprintf("10.%d.%d.%d", m.random.IntN(256), m.random.IntN(256), m.random.IntN(256)), uid: m.hex(16)}
	}
	return m
}

func (m *podMix) hex(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(m.random.Uint32())
	}
	return hex.EncodeToString(b)
}

func (m *podMix) next() Row {
	i := m.random.IntN(len(m.objects))
	p := &m.objects[i]
	at := second(0).Add(time.Duration(m.number) * 5 * time.Millisecond)
	m.number++
	from := p.at
	kind := "updated"
	if from.IsZero() {
		kind = "added"
	}
	p.at = at
	p.restarts += m.random.IntN(2)
	name, app := fmt.Sprintf("%s-%d", p.owner, i), fmt.Sprint("app-", i/20)
	var containers, statuses strings.Builder
	for c := range 3 {
		fmt.Fprintf(&containers, `{"name":"c%d","image":"registry.example.com/%s/c%d:1.%d.0","imagePullPolicy":"IfNotPresent","args":["--listen=:80%d","--name=%s","--log=json"],"env":[{"name":"POD_NAME","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.name"}}},{"name":"POD_NAMESPACE","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"}}},{"name":"OWNER","value":%q},{"name":"CONFIG","value":"%s"}],"ports":[{"containerPort":80%d,"name":"http","protocol":"TCP"}],"livenessProbe":{"failureThreshold":3,"httpGet":{"path":"/healthz","port":"http","scheme":"HTTP"},"periodSeconds":10,"successThreshold":1,"timeoutSeconds":1},"resources":{"limits":{"cpu":"500m","memory":"512Mi"},"requests":{"cpu":"100m","memory":"128Mi"}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","volumeMounts":[{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","name":"kube-api-access-%s","readOnly":true},{"mountPath":"/etc/config","name":"config"}]},`,
			c, app, c, i/20%7, c, app, p.owner, strings.Repeat(app, 20), c, p.uid[:5])
		fmt.Fprintf(&statuses, `{"containerID":"containerd://%s%s%d","image":"registry.example.com/%s/c%d:1.%d.0","imageID":"registry.example.com/%s/c%d@sha256:%s","lastState":{},"name":"c%d","ready":true,"restartCount":%d,"started":true,"state":{"running":{"startedAt":%q}}},`,
			p.uid, p.uid, p.restarts, app, c, i/20%7, app, c, strings.Repeat(p.owner, 3), c, p.restarts, at.Format(time.RFC3339))
	}
	version := fmt.Sprint(1_000_000 + m.number)
	object := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"checksum/config":"%s"},"creationTimestamp":"2026-11-01T00:00:00Z","generateName":"%s-","labels":{"app":%q,"pod-template-hash":%q},"name":%q,"namespace":"ns-%d","ownerReferences":[{"apiVersion":"apps/v1","blockOwnerDeletion":true,"controller":true,"kind":"ReplicaSet","name":%q,"uid":"%s"}],"resourceVersion":%q,"uid":%q},"spec":{"containers":[%s{}],"dnsPolicy":"ClusterFirst","enableServiceLinks":true,"nodeName":%q,"preemptionPolicy":"PreemptLowerPriority","priority":0,"restartPolicy":"Always","schedulerName":"default-scheduler","securityContext":{},"serviceAccount":"default","serviceAccountName":"default","terminationGracePeriodSeconds":30,"tolerations":[{"effect":"NoExecute","key":"node.kubernetes.io/not-ready","operator":"Exists","tolerationSeconds":300},{"effect":"NoExecute","key":"node.kubernetes.io/unreachable","operator":"Exists","tolerationSeconds":300}],"volumes":[{"name":"kube-api-access-%s","projected":{"defaultMode":420,"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},{"configMap":{"items":[{"key":"ca.crt","path":"ca.crt"}],"name":"kube-root-ca.crt"}}]}}]},"status":{"conditions":[{"lastProbeTime":null,"lastTransitionTime":"2026-11-01T00:00:00Z","status":"True","type":"Initialized"},{"lastProbeTime":null,"lastTransitionTime":%q,"status":"True","type":"Ready"},{"lastProbeTime":null,"lastTransitionTime":%q,"status":"True","type":"ContainersReady"}],"containerStatuses":[%s{}],"hostIP":"10.0.0.%s","phase":"Running","podIP":%q,"podIPs":[{"ip":%q}],"qosClass":"Burstable","startTime":"2026-11-01T00:00:00Z"}}`,
		strings.Repeat(p.owner, 2), p.owner, app, p.owner[len(p.owner)-10:], name, i/200, p.owner, p.owner, version, p.uid, containers.String(), p.node, p.uid[:5],
		at.Format(time.RFC3339), at.Format(time.RFC3339), statuses.String(), p.node[5:], p.ip, p.ip)
	r := Row{Object: object, Facts: Facts{Cluster: "c", Version: "v1", Resource: "pods", Kind: "Pod", Namespace: fmt.Sprint("ns-", i/200), Name: name,
		UID: p.uid, ResourceVersion: version, Type: kind, ObservedAt: at, ChangedAt: at, NotBefore: at.Add(-time.Second), TimeSource: "managedFields", Manager: "kubelet"}}
	for _, path := range []string{"/status/conditions/1/lastTransitionTime", "/status/containerStatuses/0/state/running/startedAt", "/status/containerStatuses/1/state/running/startedAt"} {
		r.Changed = append(r.Changed, Difference{Path: path, From: `"` + from.Format(time.RFC3339) + `"`, To: `"` + at.Format(time.RFC3339) + `"`})
	}
	return r
}

// store stores so many changes as one file, and clears rows.
func (m *podMix) store(tb testing.TB, w *Writer, rows []Row) (bytes int) {
	tb.Helper()
	for i := range rows {
		rows[i] = m.next()
		bytes += len(rows[i].Object)
	}
	batch, err := w.NewBatch(rows)
	if err == nil {
		err = batch.Commit()
	}
	if err != nil {
		tb.Fatal(err)
	}
	clear(rows)
	return bytes
}

// heldDisk notes the most memory that is held when something is written to a file.
type heldDisk struct {
	osDisk
	most *uint64
}

func (d heldDisk) create(path string) (diskFile, error) {
	f, err := d.osDisk.create(path)
	return heldFile{f, d.most}, err
}

type heldFile struct {
	diskFile
	most *uint64
}

func (f heldFile) Write(b []byte) (int, error) {
	*f.most = max(*f.most, heldMemory())
	return f.diskFile.Write(b)
}

func heldMemory() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// TestAMergeHoldsAFewPagesOfEachFile, and what it writes in parts: not what it merges.
func TestAMergeHoldsAFewPagesOfEachFile(t *testing.T) {
	w, err := OpenWriter(Folder(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	const files, rows, bound = 16, 1_000, 32 << 20
	w.largeRows = files * rows
	mix, merged := newPodMix(2_000), 0
	for range files {
		merged += mix.store(t, w, make([]Row, rows))
	}
	before, most := heldMemory(), uint64(0)
	w.store.(*folder).disk = heldDisk{most: &most}
	if done, err := w.Compact(false); !done || err != nil || len(w.manifest.Files) != 1 || !w.manifest.Files[0].Large {
		t.Fatalf("%t, %v: %+v", done, err, w.manifest.Files)
	}
	if held := most - before; held > bound || merged < 3*bound {
		t.Errorf("a merge of %d bytes holds %d, want at most %d", merged, held, bound)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
