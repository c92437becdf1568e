package nats

import (
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
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
	headerOffset          = "Kubecdc-Offset"
	headerOperation       = "KV-Operation" // of key-value buckets (nats-io/nats-architecture-and-design, ADR-8)
)

// message is filled anew for each change of one Publish. Its payload is the caller's to set.
type message struct {
	*nats.Msg
	format           format.Format
	repeatPayload    bool                  // headers say what the payload says, too
	nativeHeaders    map[string][]string   // the headers that repeat the payload; the change is set in place
	hasNative        bool                  // native is in the headers
	hasFacts         bool                  // what setFactHeaders sets is
	offsetHeader     [1]string             // the value of the header of that name
	scratch          []byte                // for what becomes a string
	setFormatHeaders func(c *event.Change) // sets the headers that the format has of its own
}

func newMessage(cfg Config, f format.Format) *message {
	m := &message{format: f, Msg: &nats.Msg{Header: nats.Header{}}, repeatPayload: cfg.Headers || f == format.Upsert}
	if cfg.Headers || f == format.CloudEvents || f == format.CloudEventsStructured {
		m.Header[headerContentType] = []string{f.ContentType()}
	}
	switch f {
	case format.CloudEvents:
		m.Header["ce-datacontenttype"] = []string{f.ContentType()}
		m.setFormatHeaders = newAttributes(m.Header).setAttributes
	case format.CloudEventsStructured:
		m.setFormatHeaders = func(*event.Change) {} // a reader takes a message with attributes in headers for one in binary mode
	default:
		m.nativeHeaders = map[string][]string{}
		for _, name := range []string{headerID, headerType, headerCluster, headerResource, headerKey, headerResourceVersion} {
			m.nativeHeaders[name] = []string{""}
		}
		m.setFormatHeaders = func(c *event.Change) { m.setNativeHeaders(c, m.repeatPayload) }
	}
	return m
}

// storedOffset is what our newest message in a stream says of how far we got: its offset in the journal, under the epoch
// in which offsets mean something, and the batch that it came with.
type storedOffset struct {
	offset       uint64
	epoch, batch string
}

// setBatchStart sets what the first message of a batch says: the stream, and the sequence that it must come behind. next says
// that another message follows.
func (m *message) setBatchStart(stream string, last uint64) {
	m.Header[headerOffset] = m.offsetHeader[:]
	m.Header[nats.ExpectedStreamHdr] = []string{stream}
	m.Header[nats.ExpectedLastSeqHdr] = []string{strconv.FormatUint(last, 10)}
}

func (m *message) clearBatchStart() {
	delete(m.Header, nats.ExpectedStreamHdr)
	delete(m.Header, nats.ExpectedLastSeqHdr)
}

// setOffsetAndReply sets the place of a message of a batch, and its reply subject. Both share one string, since every change pays for
// it.
func (m *message) setOffsetAndReply(p storedOffset, b *openBatch, lead string, operation int) {
	place := append(strconv.AppendUint(m.scratch[:0], p.offset, 10), ' ')
	place = append(append(append(place, p.epoch...), ' '), p.batch...)
	m.scratch = b.appendReply(place, lead, uint64(len(b.offsets))+1, operation)
	text := string(m.scratch)
	m.offsetHeader[0], m.Reply = text[:len(place)], text[len(place):]
}

// parseStoredOffset reads what setOffsetAndReply wrote.
func parseStoredOffset(header string) (p storedOffset, ok bool) {
	parts := strings.Split(header, " ")
	if len(parts) != 3 {
		return storedOffset{}, false
	}
	offset, err := strconv.ParseUint(parts[0], 10, 64)
	return storedOffset{offset, parts[1], parts[2]}, err == nil
}

// storedOffsetOf is what a message of a batch of ours says of itself.
func storedOffsetOf(m stream.Message) (storedOffset, bool) {
	return parseStoredOffset(m.Header(headerOffset))
}

// isDeadLetter says whether an exporter has put it there beside the changes.
func isDeadLetter(m stream.Message) bool {
	return strings.Contains(m.Header(nats.MsgIdHdr), deadLetterInfix)
}

// setMessageID makes m a message that is sent by itself: the stream drops a repetition of the ID.
func (m *message) setMessageID(stream, id string) {
	m.Header[nats.ExpectedStreamHdr] = []string{stream}
	m.Header[nats.MsgIdHdr] = []string{id}
}

// changeMessageID is what the stream drops a repetition by: the ID of the change.
func changeMessageID(c *event.Change) string {
	if c.DeadLetter != nil { // the stream may hold the change itself, from another sink
		return c.ID() + deadLetterInfix + c.DeadLetter.Sink
	}
	return c.ID()
}

const deadLetterInfix = "/dead-letter/"

// setNativeHeaders sets what the payload cannot tell, and what it can if that is to be repeated.
func (m *message) setNativeHeaders(c *event.Change, repeat bool) {
	m.setFactHeaders(c)
	if m.hasNative { // what is not there need not be looked for, for each change
		delete(m.Header, headerSnapshot)
		for name := range m.nativeHeaders {
			delete(m.Header, name)
		}
	}
	if m.hasNative = repeat; !repeat {
		return
	}
	for name, value := range m.nativeHeaders {
		m.Header[name] = value
	}
	m.nativeHeaders[headerID][0] = c.ID()
	m.nativeHeaders[headerType][0] = string(c.Type)
	m.nativeHeaders[headerCluster][0] = c.Cluster
	m.nativeHeaders[headerResource][0] = c.Resource.String()
	m.nativeHeaders[headerKey][0] = c.Key()
	m.nativeHeaders[headerResourceVersion][0] = c.ResourceVersion
	if c.Snapshot != nil {
		m.Header[headerSnapshot] = []string{c.Snapshot.ID}
	}
}

// setFactHeaders sets what the payload cannot tell.
func (m *message) setFactHeaders(c *event.Change) {
	if m.hasFacts {
		delete(m.Header, headerChange)
		delete(m.Header, headerOperation)
	}
	if m.hasFacts = m.format.NeedsFactsHeader(c); !m.hasFacts {
		return
	}
	m.scratch = format.AppendFacts(m.scratch[:0], c)
	m.Header[headerChange] = []string{string(m.scratch)}
	if m.format == format.Upsert && len(c.After) == 0 {
		m.Header[headerOperation] = []string{"DEL"}
	}
}

// attributeHeaders are the CloudEvents attributes of one change in the headers of a message (cloudevents/bindings/
// nats-protocol-binding.md, section 3.1.3). They share one string, so that a change costs one allocation.
type attributeHeaders struct {
	header  nats.Header
	headers []attributeHeader
	text    []byte // scratch: all values, encoded
	value   []byte // scratch: one, not encoded
}

type attributeHeader struct {
	format.Attribute
	header string
	value  []string // what the header is set to
	end    int      // of the value in text
}

func newAttributes(h nats.Header) *attributeHeaders {
	as := &attributeHeaders{header: h}
	for _, a := range format.Attributes() {
		as.headers = append(as.headers, attributeHeader{Attribute: a, header: "ce-" + a.Name, value: []string{""}})
	}
	return as
}

func (as *attributeHeaders) setAttributes(c *event.Change) {
	as.text = as.text[:0]
	for i := range as.headers {
		as.value = as.headers[i].Append(as.value[:0], c)
		as.text = sinks.AppendAttribute(as.text, as.value)
		as.headers[i].end = len(as.text)
	}
	text, start := string(as.text), 0
	for _, a := range as.headers {
		if start == a.end { // an attribute that is not there has no header
			delete(as.header, a.header)
			continue
		}
		a.value[0] = text[start:a.end]
		as.header[a.header] = a.value
		start = a.end
	}
}
