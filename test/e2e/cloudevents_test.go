package e2e

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	ceformat "github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestCloudEventsSDKReadsWholeRuns has the CNCF's own SDK read every event of a run from both buses, and judges what it
// gives out by etcd's history, as other tests judge the native form.
func TestCloudEventsSDKReadsWholeRuns(t *testing.T) {
	require.Long(t)
	servers(t)
	for as, encoding := range map[format.Format]binding.Encoding{
		format.CloudEvents: binding.EncodingBinary, format.CloudEventsStructured: binding.EncodingStructured,
	} {
		t.Run(as.String(), func(t *testing.T) {
			kinds := workload.AllKinds()
			s := newFixture(t, kinds, func(settings *exporter.Settings) { settings.Format = as.String() })
			s.read(as, reading{"ce_", "content-type", encoding}.unwrap, reading{"ce-", "Content-Type", encoding}.unwrap)
			s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "there-before"))
			s.must(s.exporter.Start(t.Context()))
			s.must(s.load(200, kinds).Wait())
			s.awaitAll()
			s.judge(oracle.Rules{})

			// etcd compacts the changes of the absence: a gap, and a delete of which nothing is known.
			s.loseHistory()
			s.must(s.exporter.Stop())
			s.readElsewhere(as.String())
		})
	}
}

// tellsOfAGap waits for a gap and for the delete that it hid.
func tellsOfAGap(records []bus.Record) string {
	var gap, gone bool
	for _, r := range records {
		gap = gap || r.Type == "gap" && r.Gap != nil
		gone = gone || r.Type == "deleted" && r.FinalStateUnknown && r.Name == "there-before"
	}
	if gap && gone {
		return ""
	}
	return fmt.Sprintf("a gap (seen: %t) and a delete within it (seen: %t)", gap, gone)
}

// reading is how events lie on one bus: by the bindings of the specification, cloudevents/bindings/kafka-protocol-binding.md
// and nats-protocol-binding.md.
type reading struct {
	prefix      string // of a header that is an attribute
	contentType string // header
	encoding    binding.Encoding
}

// unwrap lets the SDK parse and check an event. Attributes and data must agree.
func (r reading) unwrap(headers map[string]string, value []byte) ([]byte, string, error) {
	m := message{reading: r, headers: headers, value: value}
	if got := m.ReadEncoding(); got != r.encoding {
		return nil, "", fmt.Errorf("an event came in the mode %v, want %v", got, r.encoding)
	}
	e, err := binding.ToEvent(context.Background(), m)
	if err != nil {
		return nil, "", err
	}
	if err := e.Validate(); err != nil {
		return nil, "", err
	}
	key, err := agree(e)
	return e.Data(), key, err
}

// agree compares attributes and data, and returns the partition key.
func agree(e *event.Event) (string, error) {
	var data struct {
		ID, Type, Cluster, Group, Version, Resource, Kind string
		Namespace, Name, UID, ResourceVersion, Delta      string
		Class                                             string
		Snapshot                                          struct{ ID string }
		ObservedAt                                        time.Time
		Coalesced, FinalStateUnknown                      bool
	}
	if err := e.DataAs(&data); err != nil {
		return "", err
	}
	group := data.Group
	if group == "" {
		group = "core"
	}
	key := strings.Join([]string{data.Cluster, group, data.Resource, data.Namespace, data.Name}, "/")
	sequence := ""
	if revision, err := strconv.ParseUint(data.ResourceVersion, 10, 64); err == nil {
		sequence = fmt.Sprintf("%020d", revision)
	}
	want := map[string]string{
		"cluster": data.Cluster, "group": group, "resource": data.Resource, "kind": data.Kind, "uid": data.UID,
		"resourceversion": data.ResourceVersion, "sequence": sequence, "partitionkey": key, "delta": data.Delta,
		"class": data.Class, "snapshotid": data.Snapshot.ID,
	}
	if data.Coalesced {
		want["coalesced"] = "true"
	}
	if data.FinalStateUnknown {
		want["finalstateunknown"] = "true"
	}
	for name, text := range want {
		if text == "" {
			delete(want, name)
		}
	}
	got := map[string]string{}
	for name, v := range e.Extensions() {
		got[name] = fmt.Sprint(v)
	}
	subject := ""
	if data.Name != "" {
		subject = strings.TrimPrefix(data.Namespace+"/"+data.Name, "/")
	}
	source := fmt.Sprintf("/clusters/%s/%s/%s/%s", data.Cluster, group, data.Version, data.Resource)
	one := fmt.Sprint(e.ID(), e.Type(), e.Source(), e.Subject(), e.Time().UTC(), e.DataContentType(), e.SpecVersion(), got)
	other := fmt.Sprint(data.ID, "io.kubecdc.resource."+data.Type, source, subject, data.ObservedAt.UTC(), "application/json", "1.0", want)
	if one != other {
		return "", fmt.Errorf("the attributes say %s, the data %s", one, other)
	}
	return key, nil
}

// message is one record or message for the SDK.
type message struct {
	reading
	headers map[string]string
	value   []byte
}

var (
	_ binding.MessageReader         = message{}
	_ binding.MessageMetadataReader = message{}
)

// ReadEncoding detects the mode by the content type, as both bindings do.
func (m message) ReadEncoding() binding.Encoding {
	switch {
	case ceformat.IsFormat(m.headers[m.contentType]):
		return binding.EncodingStructured
	case m.headers[m.prefix+"specversion"] != "":
		return binding.EncodingBinary
	}
	return binding.EncodingUnknown
}

func (m message) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	if m.ReadEncoding() != binding.EncodingStructured {
		return binding.ErrNotStructured
	}
	return w.SetStructuredEvent(ctx, ceformat.Lookup(m.headers[m.contentType]), bytes.NewReader(m.value))
}

func (m message) ReadBinary(_ context.Context, w binding.BinaryWriter) error {
	if m.ReadEncoding() != binding.EncodingBinary {
		return binding.ErrNotBinary
	}
	version := spec.WithPrefix(m.prefix).Version(m.headers[m.prefix+"specversion"])
	if version == nil {
		return fmt.Errorf("no known version: %v", m.headers)
	}
	if err := w.SetAttribute(version.AttributeFromKind(spec.DataContentType), m.headers[m.contentType]); err != nil {
		return err
	}
	for header, text := range m.headers {
		name, prefixed := strings.CutPrefix(header, m.prefix)
		if !prefixed {
			continue
		}
		var err error
		if attribute := version.Attribute(header); attribute != nil {
			err = w.SetAttribute(attribute, text)
		} else {
			err = w.SetExtension(name, text)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", header, err)
		}
	}
	return w.SetData(bytes.NewReader(m.value))
}

func (m message) GetAttribute(kind spec.Kind) (spec.Attribute, any) {
	attribute := spec.WithPrefix(m.prefix).Latest().AttributeFromKind(kind)
	header := attribute.PrefixedName()
	if kind == spec.DataContentType {
		header = m.contentType
	}
	return attribute, m.headers[header]
}

func (m message) GetExtension(name string) any { return m.headers[m.prefix+name] }
