package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

func readObject(b string) (*deltas.Object, error) {
	var f fields
	if err := scanDocument([]byte(b), &f); err != nil {
		return nil, err
	}
	return newObject([]byte(b), &f, "")
}

func TestIdentityIsReadAndManagedFieldsAreRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		in, raw string
		want    deltas.Object
	}{
		"managed fields in the middle": {
			in:   `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","managedFields":[{"manager":"k","operation":"Update","time":"2026-01-02T03:04:05Z","fieldsV1":{"f:x":{}}}],"uid":"u","resourceVersion":"7","generation":3},"spec":{}}`,
			raw:  `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","generation":3},"spec":{}}`,
			want: deltas.Object{Namespace: "n", Name: "a", UID: "u", ResourceVersion: "7", Generation: 3, Names: "k\x00Update\x00\x002026-01-02T03:04:05Z\x00"},
		},
		"managed fields first": {
			in:   `{"metadata":{"managedFields":[ ] , "name":"a"}}`,
			raw:  `{"metadata":{ "name":"a"}}`,
			want: deltas.Object{Name: "a"},
		},
		"managed fields last": {
			in:   `{"metadata":{"name":"a" , "managedFields":null}}`,
			raw:  `{"metadata":{"name":"a" }}`,
			want: deltas.Object{Name: "a"},
		},
		"managed fields alone": {
			in:   `{"metadata":{"managedFields":[{}]}}`,
			raw:  `{"metadata":{}}`,
			want: deltas.Object{Names: "\x00\x00\x00\x00"},
		},
		"managed fields elsewhere stay": {
			in:   `{"managedFields":[1],"metadata":{"name":"a","annotations":{"managedFields":"[]","x":"{\"metadata\":{\"managedFields\":[]}}"}},"spec":{"template":{"metadata":{"managedFields":[{}],"name":"b"}}}}`,
			raw:  `{"managedFields":[1],"metadata":{"name":"a","annotations":{"managedFields":"[]","x":"{\"metadata\":{\"managedFields\":[]}}"}},"spec":{"template":{"metadata":{"managedFields":[{}],"name":"b"}}}}`,
			want: deltas.Object{Name: "a"},
		},
		"escapes in keys and values": {
			in:   `{"m\u0065tadata":{"nam\u0065":"a\u0026\"b\\","managed\u0046ields":[],"uid":"\u00fc"}}`,
			raw:  `{"m\u0065tadata":{"nam\u0065":"a\u0026\"b\\","uid":"\u00fc"}}`,
			want: deltas.Object{Name: `a&"b\`, UID: "ü"},
		},
		"nulls are absent": {
			in:   `{"metadata":{"name":"a","namespace":null,"generation":null}}`,
			raw:  `{"metadata":{"name":"a","namespace":null,"generation":null}}`,
			want: deltas.Object{Name: "a"},
		},
		"metadata is no object": {
			in: `{"metadata":[{"name":"a"}]}`, raw: `{"metadata":[{"name":"a"}]}`,
		},
		"numbers keep their digits": {
			in:   ` {"metadata":{"name":"a"},"spec":{"n":12345678901234567890.10}} `,
			raw:  ` {"metadata":{"name":"a"},"spec":{"n":12345678901234567890.10}} `,
			want: deltas.Object{Name: "a"},
		},
		"the end of initial events": {
			in:   `{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}`,
			raw:  `{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}`,
			want: deltas.Object{ResourceVersion: "9", InitialEventsEnd: true},
		},
		"an ordinary bookmark": {
			in:   `{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"false"}}}`,
			raw:  `{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"false"}}}`,
			want: deltas.Object{ResourceVersion: "9"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readObject(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Raw) != c.raw {
				t.Errorf("raw\n got %s\nwant %s", got.Raw, c.raw)
			}
			if cap(got.Raw) != len(got.Raw) {
				t.Errorf("raw holds %d bytes for %d", cap(got.Raw), len(got.Raw))
			}
			want := deltas.NewObject(c.want.Namespace, c.want.Name)
			want.UID, want.ResourceVersion, want.Generation = c.want.UID, c.want.ResourceVersion, c.want.Generation
			want.Names, want.InitialEventsEnd = c.want.Names, c.want.InitialEventsEnd
			want.Raw, want.ObservedAt, want.Summary = got.Raw, got.ObservedAt, got.Summary
			if !reflect.DeepEqual(got, want) {
				t.Errorf("object\n got %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestMalformedObjectsAreRejected(t *testing.T) {
	for _, in := range []string{
		``, ` `, `[]`, `1`, `"a"`, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{"a" 1}`, `{,}`, `{"a":}`, `{"a":1}x`, `{"a":1}{}`,
		`{"a":[}`, `{"a":{]}`, `{"a":[}]}`, `{"a":"\`, `{"a":"x`, `{a:1}`, `{"a":1 "b":2}`,
		`{"metadata":{"name":5}}`, `{"metadata":{"name":{}}}`, `{"kind":true}`, `{"metadata":{"generation":1.5}}`, `{"metadata":{"generation":"1"}}`,
		`{"metadata":{},"metadata":{}}`, `{"metadata":{"managedFields":[],"managedFields":[]}}`,
		`{"metadata":{"managedFields":[{]}}`, `{"metadata":{"managedFields":[{} {}]}}`, `{"metadata":{"managedFields":[{}`, `{"metadata":{"managedFields":[`,
		`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 199) + `}`,
		`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 100) + "}" + strings.Repeat("]", 99) + `}`,
	} {
		if o, err := readObject(in); err == nil {
			t.Errorf("%s\nread as %+v", in, o)
		}
	}
}

func TestDeepNestingIsScanned(t *testing.T) {
	in := `{"a":` + strings.Repeat(`[{"b":`, 300) + `1` + strings.Repeat(`}]`, 300) + `,"metadata":{"name":"x"}}`
	o, err := readObject(in)
	if err != nil || o.Name != "x" {
		t.Fatalf("%+v, %v", o, err)
	}
}

func TestEveryTruncationIsRejected(t *testing.T) {
	whole := podJSON(2)
	for n := range whole {
		var f fields
		if err := scanDocument(whole[:n], &f); err == nil {
			t.Fatalf("the first %d of %d bytes were accepted as an object", n, len(whole))
		}
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"kind":"Pod","metadata":{"name":"a","managedFields":[{"manager":"m","time":"2026-01-02T03:04:05Z"}],"uid":"u"}}`))
	f.Add([]byte(`{"metadata":{"managedFields":[],"name":"\u0061"}}`))
	f.Add([]byte(`{"metadata":{"name":"a","managedFields":{}}} `))
	f.Add([]byte(`{"items":[{}],"metadata":{"resourceVersion":"1"},"kind":"PodList"}`))
	f.Add(podJSON(1))
	f.Fuzz(func(t *testing.T, b []byte) {
		var fs fields
		if scanDocument(b, &fs) != nil {
			return
		}
		if json.Valid(b) {
			for _, end := range []int{len(bytes.TrimRight(b, " \t\r\n")) - 1, len(b) / 2} {
				if scanDocument(b[:end], &fields{}) == nil {
					t.Fatalf("accepted the truncated object %q", b[:end])
				}
			}
		}
		o, err := newObject(b, &fs, "")
		if err != nil || !json.Valid(b) || !utf8.Valid(b) { // API servers write only UTF-8, and encoding/json replaces the rest
			return
		}
		compareWithFullDecode(t, b, o)
	})
}

// compareWithFullDecode compares the scanner's result with encoding/json's.
func compareWithFullDecode(t *testing.T, b []byte, o *deltas.Object) {
	t.Helper()
	var whole, cut map[string]any
	if err := json.Unmarshal(b, &whole); err != nil {
		t.Fatalf("accepted %q: %v", b, err)
	}
	if err := json.Unmarshal(o.Raw, &cut); err != nil {
		t.Fatalf("%q became %q: %v", b, o.Raw, err)
	}
	metadata, _ := whole["metadata"].(map[string]any)
	for key, got := range map[string]string{"name": o.Name, "namespace": o.Namespace, "uid": o.UID, "resourceVersion": o.ResourceVersion} {
		if want, _ := metadata[key].(string); want != got {
			t.Errorf("%q: %s %q, want %q", b, key, got, want)
		}
	}
	delete(metadata, "managedFields")
	if !reflect.DeepEqual(whole, cut) {
		t.Errorf("%q became %q", b, o.Raw)
	}
}

func FuzzValidObjectsAreAccepted(f *testing.F) {
	f.Add("a", "n", "u", "7", "m", `{"x":[1,{"y":null}]}`, int64(3), true)
	f.Add("", "\x00\"\\", "ü", "\u2028", "<&>", `"managedFields"`, int64(-1), false)
	f.Fuzz(func(t *testing.T, name, namespace, uid, rv, manager, spec string, generation int64, indent bool) {
		object := map[string]any{
			"kind": "Pod",
			"metadata": map[string]any{
				"name": name, "namespace": namespace, "uid": uid, "resourceVersion": rv, "generation": generation, manager: spec, "x" + manager: "",
				"managedFields": []any{map[string]any{"manager": manager, "time": "2026-01-02T03:04:05Z", "fieldsV1": map[string]any{spec: nil}}},
			},
			"spec": spec,
		}
		if json.Valid([]byte(spec)) {
			object["spec"] = json.RawMessage(spec)
		}
		b, err := json.Marshal(object)
		if err != nil {
			t.Skip(err)
		}
		if indent {
			var out bytes.Buffer
			if json.Indent(&out, b, " ", "\t") != nil {
				t.Skip()
			}
			b = out.Bytes()
		}
		o, err := readObject(string(b))
		if isIdentity(manager) {
			return // the extra member replaced one of the identity
		}
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		compareWithFullDecode(t, b, o)
		var want struct {
			Metadata struct{ ManagedFields []struct{ Manager string } }
		}
		if json.Unmarshal(b, &want) != nil || len(want.Metadata.ManagedFields) != 1 {
			return
		}
		var got string
		first, _, _ := strings.Cut(o.Names, "\x00")
		if err := json.Unmarshal([]byte(`"`+first+`"`), &got); err != nil || got != want.Metadata.ManagedFields[0].Manager {
			t.Errorf("manager %q %v, want %+v", got, err, want)
		}
	})
}

func isIdentity(key string) bool {
	for _, k := range []string{"name", "namespace", "uid", "resourceVersion", "generation", "managedFields"} {
		if strings.EqualFold(k, key) || strings.EqualFold(k, "x"+key) {
			return true
		}
	}
	return false
}

// podJSON returns a Pod as a real API server writes it. One container gives about 5 KB, seven about 14 KB.
func podJSON(containers int) []byte {
	var spec, status, fields []string
	for i := range containers {
		spec = append(spec, fmt.Sprintf(`{"name":"app-%d","image":"registry.example.com/team/app:v1.2.%d","args":["--listen=:8080","--log=info"],"ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}],"env":[{"name":"POD_NAME","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.name"}}},{"name":"MODE","value":"production"}],"resources":{"limits":{"cpu":"500m","memory":"256Mi"},"requests":{"cpu":"100m","memory":"128Mi"}},"volumeMounts":[{"name":"kube-api-access-x7k2p","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}],"livenessProbe":{"httpGet":{"path":"/livez","port":8080,"scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}`, i, i))
		status = append(status, fmt.Sprintf(`{"name":"app-%d","state":{"running":{"startedAt":"2026-01-02T03:04:05Z"}},"lastState":{},"ready":true,"restartCount":0,"image":"registry.example.com/team/app:v1.2.%d","imageID":"registry.example.com/team/app@sha256:4bcdd1ee0dc9ba2ad6f8c9d9a5cf9dd59c3f0b6d6f0a37e6e9d2f5a4b8c7d6e5","containerID":"containerd://9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08","started":true}`, i, i))
		fields = append(fields, fmt.Sprintf(`"k:{\"name\":\"app-%d\"}":{".":{},"f:args":{},"f:env":{".":{},"k:{\"name\":\"MODE\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"POD_NAME\"}":{".":{},"f:name":{},"f:valueFrom":{".":{},"f:fieldRef":{}}}},"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}},"f:periodSeconds":{},"f:successThreshold":{},"f:timeoutSeconds":{}},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:name":{},"f:protocol":{}}},"f:resources":{".":{},"f:limits":{".":{},"f:cpu":{},"f:memory":{}},"f:requests":{".":{},"f:cpu":{},"f:memory":{}}},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}`, i))
	}
	return []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"app-7d9c6b8f5d-x7k2p","generateName":"app-7d9c6b8f5d-","namespace":"production","uid":"6f1d3c9e-8a57-4f0e-9d0b-3c5a7e2b1f44","resourceVersion":"123456789","generation":1,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app.kubernetes.io/name":"app","pod-template-hash":"7d9c6b8f5d"},"annotations":{"prometheus.io/scrape":"true"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"app-7d9c6b8f5d","uid":"0b9d3c9e-8a57-4f0e-9d0b-3c5a7e2b1f45","controller":true,"blockOwnerDeletion":true}],"managedFields":[{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:prometheus.io/scrape":{}},"f:generateName":{},"f:labels":{".":{},"f:app.kubernetes.io/name":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"0b9d3c9e-8a57-4f0e-9d0b-3c5a7e2b1f45\"}":{}}},"f:spec":{"f:containers":{` + strings.Join(fields, ",") + `},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{}}}},{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:09Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Initialized\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Ready\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},"k:{\"ip\":\"10.1.2.3\"}":{".":{},"f:ip":{}}},"f:startTime":{}}},"subresource":"status"}]},"spec":{"volumes":[{"name":"kube-api-access-x7k2p","projected":{"sources":[{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},{"configMap":{"name":"kube-root-ca.crt","items":[{"key":"ca.crt","path":"ca.crt"}]}}],"defaultMode":420}}],"containers":[` + strings.Join(spec, ",") + `],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"default","nodeName":"node-17","securityContext":{},"schedulerName":"default-scheduler","tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}],"priority":0,"enableServiceLinks":true},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:09Z"}],"hostIP":"10.0.0.17","podIP":"10.1.2.3","podIPs":[{"ip":"10.1.2.3"}],"startTime":"2026-01-02T03:04:05Z","containerStatuses":[` + strings.Join(status, ",") + `],"qosClass":"Burstable"}}`)
}

func BenchmarkDecode(b *testing.B) {
	for _, containers := range []int{1, 6} {
		pod := podJSON(containers)
		b.Run(fmt.Sprintf("%dB", len(pod)), func(b *testing.B) {
			d := podDecoder()
			b.SetBytes(int64(len(pod)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Object(pod); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(pod)), "ns/byte")
		})
	}
}
