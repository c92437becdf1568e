package nats

import (
	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// Names of the headers, see the package comment.
const (
	headerContentType     = "Content-Type"
	headerID              = "Kubecdc-Id"
	headerType            = "Kubecdc-Type"
	headerCluster         = "Kubecdc-Cluster"
	headerResource        = "Kubecdc-Resource"
	headerKey             = "Kubecdc-Key"
	headerResourceVersion = "Kubecdc-Resource-Version"
	headerSnapshot        = "Kubecdc-Snapshot"
	headerChange          = "Kubecdc-Change"
	headerOperation       = "KV-Operation" // of key-value buckets (nats-io/nats-architecture-and-design, ADR-8)
)

// message is filled anew for each change of one Publish. Its payload is the caller's to set.
type message struct {
	*nats.Msg
	format   format.Format
	facts    []byte                // scratch
	describe func(c *event.Change) // sets the headers that the format has of its own
}

func newMessage(cfg Config, f format.Format) *message {
	m := &message{format: f, Msg: &nats.Msg{Header: nats.Header{
		nats.MsgIdHdr:     {""},
		headerContentType: {f.ContentType()},
	}}}
	if cfg.Mode != modeCore {
		m.Header[nats.ExpectedStreamHdr] = []string{cfg.Stream}
	}
	if cfg.Exact {
		m.Header[nats.ExpectedLastSubjSeqHdr] = []string{""}
	}
	switch f {
	case format.CloudEvents:
		m.Header["ce-datacontenttype"] = []string{f.ContentType()}
		m.describe = newAttributes(m.Header).set
	case format.CloudEventsStructured:
		m.describe = func(*event.Change) {} // a reader takes a message with attributes in headers for one in binary mode
	default:
		for _, name := range []string{headerID, headerType, headerCluster, headerResource, headerKey, headerResourceVersion} {
			m.Header[name] = []string{""}
		}
		m.describe = m.describeNative
	}
	return m
}

// setHeaders sets the headers that differ between changes.
func (m *message) setHeaders(c *event.Change) {
	m.Header[nats.MsgIdHdr][0] = messageID(c)
	m.describe(c)
}

// messageID is what the stream drops a repetition by: the ID of the change.
func messageID(c *event.Change) string {
	if c.DeadLetter != nil { // the stream may hold the change itself, from another sink
		return c.ID() + "/dead-letter/" + c.DeadLetter.Sink
	}
	return c.ID()
}

func (m *message) describeNative(c *event.Change) {
	m.Header[headerID][0] = c.ID()
	m.Header[headerType][0] = string(c.Type)
	m.Header[headerCluster][0] = c.Cluster
	m.Header[headerResource][0] = c.Resource.String()
	m.Header[headerKey][0] = c.Key()
	m.Header[headerResourceVersion][0] = c.ResourceVersion
	m.describeBeside(c)
}

// describeBeside sets what the payload cannot tell.
func (m *message) describeBeside(c *event.Change) {
	delete(m.Header, headerSnapshot)
	delete(m.Header, headerChange)
	delete(m.Header, headerOperation)
	if c.Snapshot != nil {
		m.Header[headerSnapshot] = []string{c.Snapshot.ID}
	}
	if !m.format.FactsBeside(c) {
		return
	}
	m.facts = format.AppendFacts(m.facts[:0], c)
	m.Header[headerChange] = []string{string(m.facts)}
	if m.format == format.Upsert && len(c.After) == 0 {
		m.Header[headerOperation] = []string{"DEL"}
	}
}

// attributes are the CloudEvents attributes of one change in the headers of a message (cloudevents/bindings/
// nats-protocol-binding.md, section 3.1.3). They share one string, so that a change costs one allocation.
type attributes struct {
	header nats.Header
	all    []attribute
	text   []byte // scratch: all values, encoded
	value  []byte // scratch: one, not encoded
}

type attribute struct {
	format.Attribute
	header string
	value  []string // what the header is set to
	end    int      // of the value in text
}

func newAttributes(h nats.Header) *attributes {
	as := &attributes{header: h}
	for _, a := range format.Attributes() {
		as.all = append(as.all, attribute{Attribute: a, header: "ce-" + a.Name, value: []string{""}})
	}
	return as
}

func (as *attributes) set(c *event.Change) {
	as.text = as.text[:0]
	for i := range as.all {
		as.value = as.all[i].Append(as.value[:0], c)
		as.text = appendEncoded(as.text, as.value)
		as.all[i].end = len(as.text)
	}
	text, start := string(as.text), 0
	for _, a := range as.all {
		if start == a.end { // an attribute that is not there has no header
			delete(as.header, a.header)
			continue
		}
		a.value[0] = text[start:a.end]
		as.header[a.header] = a.value
		start = a.end
	}
}

// appendEncoded appends a header's value (section 3.1.3.2): space, double quote, percent and what is not printable ASCII
// is percent-encoded.
func appendEncoded(dst, value []byte) []byte {
	for _, b := range value {
		if b <= ' ' || b == '"' || b == '%' || b > '~' {
			dst = append(dst, '%', hexDigits[b>>4], hexDigits[b&15])
		} else {
			dst = append(dst, b)
		}
	}
	return dst
}
