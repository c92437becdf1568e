package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// auditRelay is a proxy between the API server and the exporter that mangles batches.
type auditRelay struct {
	*httptest.Server
	to     string
	client *http.Client

	mu     sync.Mutex
	random *rand.Rand
	mangle func(*auditRelay, []json.RawMessage) []json.RawMessage
	held   []json.RawMessage // delayed
	last   string            // name of the object with the event that awaitDrained waits for
	came   bool              // the event of last has arrived
	taken  []json.RawMessage // events answered with 200
}

// connectTo makes the API server send its events to the relay.
func (l *auditRelay) connectTo(a *audited, _ *controlplane.Options) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.ca)
	pair := func(name string) tls.Certificate {
		return must(tls.LoadX509KeyPair(filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")))
	}
	l.to = "https://" + a.webhook + "/"
	l.client = &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true, // one connection, as an API server has: each counts as an API server
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair("client")}},
	}}
	l.Server = httptest.NewUnstartedServer(l)
	l.TLS = &tls.Config{Certificates: []tls.Certificate{pair("server")}}
	l.StartTLS()
	a.sendTo = strings.TrimPrefix(l.URL, "https://")
	a.t.Cleanup(func() {
		l.Close()
		l.client.CloseIdleConnections()
	})
}

// ServeHTTP forwards a mangled batch, and returns the status of the exporter.
func (l *auditRelay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var list struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l.mu.Lock()
	l.came = l.came || l.last != "" && bytes.Contains(body, []byte(l.last))
	list.Items = l.mangle(l, list.Items)
	l.mu.Unlock()
	response, err := l.client.Post(l.to, "application/json", bytes.NewReader(must(json.Marshal(list))))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		l.mu.Lock()
		l.taken = append(l.taken, list.Items...)
		l.mu.Unlock()
	}
	w.WriteHeader(response.StatusCode)
}

func (l *auditRelay) setMangle(mangle func(*auditRelay, []json.RawMessage) []json.RawMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mangle = mangle
}

// awaitDrained waits until the events of all earlier writes have arrived.
func (l *auditRelay) awaitDrained(a *audited, name string) {
	a.t.Helper()
	l.mu.Lock()
	l.last, l.came = name, false
	l.mu.Unlock()
	a.newUser(0).mustDo(a.t, "POST", "/api/v1/namespaces/default/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"}}`)
	for deadline := time.Now().Add(arriveWithin); ; time.Sleep(lookEvery) {
		l.mu.Lock()
		came := l.came
		l.mu.Unlock()
		if came {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatal("the last event does not arrive")
		}
	}
}

// passAll forwards everything, including the delayed events.
func passAll(l *auditRelay, all []json.RawMessage) []json.RawMessage {
	all, l.held = append(l.held, all...), nil
	return all
}

func loseOneOf(every int) func(*auditRelay, []json.RawMessage) []json.RawMessage {
	return func(l *auditRelay, all []json.RawMessage) []json.RawMessage {
		return slices.DeleteFunc(all, func(json.RawMessage) bool { return l.random.IntN(every) == 0 })
	}
}

// sendTwice forwards everything twice, in random order, and delays a part of it.
func sendTwice(l *auditRelay, all []json.RawMessage) []json.RawMessage {
	all = append(slices.Concat(all, all), l.held...)
	l.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	l.held = slices.Clone(all[len(all)*2/3:])
	return all[:len(all)*2/3]
}

// unifyAuditIDs sets the same audit ID in all events.
func unifyAuditIDs(_ *auditRelay, all []json.RawMessage) []json.RawMessage {
	for i, text := range all {
		var event map[string]json.RawMessage
		if json.Unmarshal(text, &event) == nil {
			event["auditID"] = json.RawMessage(`"00000000-0000-0000-0000-000000000000"`)
			all[i] = must(json.Marshal(event))
		}
	}
	return all
}

// TestMangledAuditEventsNeverNameWrongAuthor loses, doubles, reorders and delays audit events, and unifies their audit IDs.
func TestMangledAuditEventsNeverNameWrongAuthor(t *testing.T) {
	require.Long(t)
	l := &auditRelay{random: rand.New(rand.NewPCG(1, 2)), mangle: passAll}
	a := newAudited(t, l.connectTo)
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, mangle := range []func(*auditRelay, []json.RawMessage) []json.RawMessage{loseOneOf(10), loseOneOf(2), sendTwice, unifyAuditIDs} {
		l.setMangle(mangle)
		a.writeLoad(max(fewWrites/2, writesOf(t)/4), hot+2)
		l.awaitDrained(a, fmt.Sprintf("the-last-of-%d", i))
	}
	l.setMangle(passAll)
	a.writeLoad(10, spread) // flushes the delayed events
	a.awaitSettled()
	v := a.judgeStream()
	t.Logf("%d changes, %d named (%.2f %%), %d judged, %d wrong", v.changes, v.named, 100*float64(v.named)/float64(v.changes), v.judged, v.wrong)
	if v.named < v.changes/2 || v.named > v.changes*95/100 {
		t.Error("too few authors, or too little was lost")
	}
	if unnamed := v.changes - v.named + v.secrets - v.secretsNamed; float64(unnamed) != a.sumMetric("kubecdc_unresolved_total") {
		t.Errorf("%d have no author, and %v are counted", unnamed, a.sumMetric("kubecdc_unresolved_total"))
	}
	a.verifyNoSecrets()
}
