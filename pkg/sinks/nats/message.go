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
	format   format.Format
	repeat   bool                  // headers say what the payload says, too
	native   map[string][]string   // the headers that repeat the payload; the change is set in place
	repeated bool                  // native is in the headers
	beside   bool                  // what describeBeside sets is
	offset   [1]string             // the value of the header of that name
	scratch  []byte                // for what becomes a string
	describe func(c *event.Change) // sets the headers that the format has of its own
}

func newMessage(cfg Config, f format.Format) *message {
	m := &message{format: f, Msg: &nats.Msg{Header: nats.Header{}}, repeat: cfg.Headers || f == format.Upsert}
	if cfg.Headers || f == format.CloudEvents || f == format.CloudEventsStructured {
		m.Header[headerContentType] = []string{f.ContentType()}
	}
	switch f {
	case format.CloudEvents:
		m.Header["ce-datacontenttype"] = []string{f.ContentType()}
		m.describe = newAttributes(m.Header).set
	case format.CloudEventsStructured:
		m.describe = func(*event.Change) {} // a reader takes a message with attributes in headers for one in binary mode
	default:
		m.native = map[string][]string{}
		for _, name := range []string{headerID, headerType, headerCluster, headerResource, headerKey, headerResourceVersion} {
			m.native[name] = []string{""}
		}
		m.describe = func(c *event.Change) { m.describeNative(c, m.repeat) }
	}
	return m
}

// placeInStream is what our newest message in a stream says of how far we got: its offset in the journal, under the epoch
// in which offsets mean something, and the batch that it came with.
type placeInStream struct {
	offset       uint64
	epoch, batch string
}

// begin sets what the first message of a batch says: the stream, and the sequence that it must come behind. next says
// that another message follows.
func (m *message) begin(stream string, last uint64) {
	m.Header[headerOffset] = m.offset[:]
	m.Header[nats.ExpectedStreamHdr] = []string{stream}
	m.Header[nats.ExpectedLastSeqHdr] = []string{strconv.FormatUint(last, 10)}
}

func (m *message) next() {
	delete(m.Header, nats.ExpectedStreamHdr)
	delete(m.Header, nats.ExpectedLastSeqHdr)
}

// setPlace sets the place of a message of a batch, and its reply subject. Both share one string, since every change pays for
// it.
func (m *message) setPlace(p placeInStream, b *openBatch, lead string, operation int) {
	place := append(strconv.AppendUint(m.scratch[:0], p.offset, 10), ' ')
	place = append(append(append(place, p.epoch...), ' '), p.batch...)
	m.scratch = b.reply(place, lead, uint64(len(b.offsets))+1, operation)
	text := string(m.scratch)
	m.offset[0], m.Reply = text[:len(place)], text[len(place):]
}

// readPlace reads what setPlace wrote.
func readPlace(header string) (p placeInStream, ok bool) {
	parts := strings.Split(header, " ")
	if len(parts) != 3 {
		return placeInStream{}, false
	}
	offset, err := strconv.ParseUint(parts[0], 10, 64)
	return placeInStream{offset, parts[1], parts[2]}, err == nil
}

// placeOf is what a message of a batch of ours says of itself.
func placeOf(m stream.Message) (placeInStream, bool) { return readPlace(m.Header(headerOffset)) }

// isDeadLetter says whether an exporter has put it there beside the changes.
func isDeadLetter(m stream.Message) bool {
	return strings.Contains(m.Header(nats.MsgIdHdr), deadLetterID)
}

// setID makes m a message that is sent by itself: the stream drops a repetition of the ID.
func (m *message) setID(stream, id string) {
	m.Header[nats.ExpectedStreamHdr] = []string{stream}
	m.Header[nats.MsgIdHdr] = []string{id}
}

// messageID is what the stream drops a repetition by: the ID of the change.
func messageID(c *event.Change) string {
	if c.DeadLetter != nil { // the stream may hold the change itself, from another sink
		return c.ID() + deadLetterID + c.DeadLetter.Sink
	}
	return c.ID()
}

const deadLetterID = "/dead-letter/"

// describeNative sets what the payload cannot tell, and what it can if that is to be repeated.
func (m *message) describeNative(c *event.Change, repeat bool) {
	m.describeBeside(c)
	if m.repeated { // what is not there need not be looked for, for each change
		delete(m.Header, headerSnapshot)
		for name := range m.native {
			delete(m.Header, name)
		}
	}
	if m.repeated = repeat; !repeat {
		return
	}
	for name, value := range m.native {
		m.Header[name] = value
	}
	m.native[headerID][0] = c.ID()
	m.native[headerType][0] = string(c.Type)
	m.native[headerCluster][0] = c.Cluster
	m.native[headerResource][0] = c.Resource.String()
	m.native[headerKey][0] = c.Key()
	m.native[headerResourceVersion][0] = c.ResourceVersion
	if c.Snapshot != nil {
		m.Header[headerSnapshot] = []string{c.Snapshot.ID}
	}
}

// describeBeside sets what the payload cannot tell.
func (m *message) describeBeside(c *event.Change) {
	if m.beside {
		delete(m.Header, headerChange)
		delete(m.Header, headerOperation)
	}
	if m.beside = m.format.FactsBeside(c); !m.beside {
		return
	}
	m.scratch = format.AppendFacts(m.scratch[:0], c)
	m.Header[headerChange] = []string{string(m.scratch)}
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
		as.text = sinks.AppendAttribute(as.text, as.value)
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
