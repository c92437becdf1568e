package audit

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// written is an event of a patch as an API server writes it.
func written(name string) string {
	return `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"` + name + `","stage":"ResponseComplete",` +
		`"requestURI":"/x","verb":"patch","user":{"username":"ann"},"objectRef":{"resource":"pods","namespace":"n","name":"` + name + `"},` +
		`"responseStatus":{"code":200},"responseObject":{"apiVersion":"v1","kind":"Pod","metadata":{"uid":"u","resourceVersion":"7"}},` +
		`"requestReceivedTimestamp":"2026-01-02T03:04:05.1Z","stageTimestamp":"2026-01-02T03:04:05.2Z"}`
}

func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// azureRecords is a record of an Event Hub, with entries of another log of the cluster.
func azureRecords(logs ...string) string {
	all := []string{`{"category":"cluster-autoscaler","properties":{"log":"I0102 no event"},"time":"2026-01-02T03:04:06Z"}`}
	for i, log := range logs {
		all = append(all, fmt.Sprintf(`{"time":"2026-01-02T03:04:06.0000000Z","resourceId":"/SUBSCRIPTIONS/X","category":%q,"operationName":`+
			`"Microsoft.ContainerService/managedClusters/diagnosticLogs/Read","properties":{"log":%s,"stream":"stdout","pod":"kube-apiserver-1"}}`,
			[]string{"kube-audit", "kube-audit-admin"}[i%2], quoted(log+"\n")))
	}
	return `{"records":[` + strings.Join(all, ",") + `]}`
}

func cloudWatchBatch(stream string, messages ...string) string {
	var all []string
	for i, message := range messages {
		all = append(all, fmt.Sprintf(`{"id":"%d","timestamp":1767323046000,"message":%s}`, i, quoted(message)))
	}
	return `{"messageType":"DATA_MESSAGE","owner":"1","logGroup":"/aws/eks/c/cluster","logStream":"` + stream + `","subscriptionFilters":["f"],"logEvents":[` +
		strings.Join(all, ",") + `]}`
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		panic(err)
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.String()
}

func namesOf(events []Event) string {
	var all []string
	for _, e := range events {
		name := e.Name
		if e.Truncated {
			name += "?"
		}
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

const auditStream = "kube-apiserver-audit-0a1b"

func TestEnvelopesOfCloudsAreRead(t *testing.T) {
	control := `{"messageType":"CONTROL_MESSAGE","logEvents":[{"message":"CWL CONTROL MESSAGE: Checking health of destination"}]}`
	list := `{"kind":"EventList","apiVersion":"audit.k8s.io/v1","items":[` + written("a") + `]}`
	for what, test := range map[string]struct {
		text, want string
		malformed  int
	}{
		"event":                     {written("a"), "a", 0},
		"list":                      {list, "a", 0},
		"azure":                     {azureRecords(written("a"), written("b")), "a b", 0},
		"azure, one is no event":    {azureRecords("x", written("b")), "b", 1},
		"cloudwatch":                {cloudWatchBatch(auditStream, written("a"), written("b")), "a b", 0},
		"cloudwatch, compressed":    {zipped(cloudWatchBatch(auditStream, written("a"))), "a", 0},
		"cloudwatch, concatenated":  {cloudWatchBatch(auditStream, written("a")) + cloudWatchBatch(auditStream, written("b")), "a b", 0},
		"cloudwatch, members":       {zipped(cloudWatchBatch(auditStream, written("a"))) + zipped(cloudWatchBatch(auditStream, written("b"))), "a b", 0},
		"cloudwatch, another log":   {cloudWatchBatch("authenticator-1", "time=x no event"), "", 0},
		"cloudwatch, control":       {zipped(control), "", 0},
		"gzip that is too large":    {zipped(strings.Repeat(" ", maxUnpacked+1)), "", 1},
		"gzip that is cut":          {zipped(cloudWatchBatch(auditStream, written("a")))[:60], "", 1},
		"an entry of Google's logs": {`{"insertId":"x","protoPayload":{"@type":"type.googleapis.com/google.cloud.audit.AuditLog"}}`, "", 1},
	} {
		events, malformed := AppendRecord(nil, []byte(test.text))
		if namesOf(events) != test.want || malformed != test.malformed {
			t.Errorf("%s: %q, %d malformed; expected %q, %d", what, namesOf(events), malformed, test.want, test.malformed)
		}
	}
}

// TestCutEventIsAWriteByAnUnknownUser cuts an event at every byte: either nothing is known of it, or which write it was.
func TestCutEventIsAWriteByAnUnknownUser(t *testing.T) {
	whole := written("a")
	known := strings.Index(whole, `},"responseStatus"`)
	for n := 1; n < len(whole); n++ {
		for what, text := range map[string]string{
			"event": whole[:n], "azure": azureRecords(whole[:n]), "cloudwatch": cloudWatchBatch(auditStream, whole[:n]),
		} {
			events, malformed := AppendRecord(nil, []byte(text))
			if len(events)+malformed != 1 || n > known+1 && len(events) == 0 {
				t.Fatalf("%s of %d bytes: %d events, %d malformed", what, n, len(events), malformed)
			}
			for _, e := range events {
				if !e.Truncated || e.User != "" || e.Outcome == Stored || e.Answer.UID != "" || e.Name != "a" || what != "event" && e.Done == 0 {
					t.Fatalf("%s of %d bytes: %+v", what, n, e)
				}
			}
		}
	}
}

func FuzzEnvelope(f *testing.F) {
	for _, text := range []string{
		full, written("a"), azureRecords(written("a")), cloudWatchBatch(auditStream, written("a"), written("b")[:200]), zipped(cloudWatchBatch(auditStream, written("a"))),
		`{"records":`, `{"messageType":"DATA_MESSAGE","logEvents":[{"message":"\ud800"}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		events, malformed := AppendRecord(nil, b)
		if malformed < 0 || len(events) > len(b) && !bytes.HasPrefix(b, []byte{0x1f}) {
			t.Errorf("%d events, %d malformed", len(events), malformed)
		}
	})
}
