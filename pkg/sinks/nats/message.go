package nats

import (
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// Names of the headers; the package comment describes them.
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
	headerDeployment      = "Kubecdc-Deployment"
	headerOperation       = "KV-Operation" // of key-value buckets (nats-io/nats-architecture-and-design, ADR-8)
)

// maxKeptBuffer is the largest encoding buffer, in bytes, that is kept for the next message.
const maxKeptBuffer = 1 << 20

// encoder turns changes into messages. It is safe for concurrent use, each [message] by one goroutine at a time.
type encoder struct {
	cfg      Config
	format   format.Format
	subject  *sinks.Template
	features *streamFeatures
	buffers  sync.Pool // *[]byte, for payloads

	deployment atomic.Pointer[string] // in a header of each message; nil before the first Fence
}

// encodeChange fills msg with the change of m. The caller returns the buffer to releaseBuffer once the client library has
// copied the message.
func (e *encoder) encodeChange(msg *message, m sinks.Message) *[]byte {
	c := m.Change
	msg.scratch = e.appendSubject(msg.scratch[:0], m)
	msg.Subject = string(msg.scratch)
	msg.setFormatHeaders(c)
	buffer := e.buffers.Get().(*[]byte)
	msg.Data = (*buffer)[:0]
	if e.cfg.Mode != modeKV || !msg.setPurgeMarker(c, e.features.acceptsTTL.Load()) {
		msg.Data = e.format.AppendValue(msg.Data, c)
	}
	if e.cfg.Mode == modeKV && c.Type == event.Watermark && len(msg.Data) == 0 { // clients of buckets see no headers
		msg.Data = format.AppendJSON(msg.Data, c)
	}
	return buffer
}

// releaseBuffer takes the payload back from msg and keeps its memory for another message, unless it is large.
func (e *encoder) releaseBuffer(msg *message, buffer *[]byte) {
	if *buffer = msg.Data; cap(msg.Data) <= maxKeptBuffer {
		e.buffers.Put(buffer)
	}
	msg.Data = nil
}

// appendSubject appends the subject of a message: from its route, or from the sink's template. A watermark has a key of its
// own in a bucket.
func (e *encoder) appendSubject(dst []byte, m sinks.Message) []byte {
	if e.cfg.Mode == modeKV && m.Change.Type == event.Watermark {
		return e.cfg.appendWatermarkSubject(dst, m.Change)
	}
	subject := e.subject
	if m.Topic != nil {
		subject = m.Topic
	}
	return subject.AppendName(dst, m.Change, AppendToken)
}

func (e *encoder) subjectOf(m sinks.Message) string { return string(e.appendSubject(nil, m)) }

// omitsChange reports whether the destination cannot hold a change: a control record in a bucket, other than a watermark.
func (e *encoder) omitsChange(c *event.Change) bool {
	return e.cfg.Mode == modeKV && c.Type.IsControl() && c.Type != event.Watermark
}

// newMessage returns a message for the changes of one Publish, which fill it one after the other.
func (e *encoder) newMessage() *message {
	m := newMessage(e.cfg, e.format)
	if d := e.deployment.Load(); d != nil && *d != "" {
		m.Header[headerDeployment] = []string{*d}
	}
	return m
}

// message is the message of one change. A Publish fills the same message for each of its changes, so that the headers are
// allocated once. One goroutine uses it; the client library copies it.
type message struct {
	*nats.Msg
	format           format.Format
	repeatPayload    bool                  // headers repeat members of the payload
	nativeHeaders    map[string][]string   // headers that repeat the payload; their values are replaced in place
	hasNative        bool                  // Header holds nativeHeaders
	hasFacts         bool                  // Header holds the result of setFactHeaders
	offsetHeader     [1]string             // value of the header Kubecdc-Offset
	scratch          []byte                // for text that becomes a string
	setFormatHeaders func(c *event.Change) // sets the headers of the format
}

func newMessage(cfg Config, f format.Format) *message {
	m := &message{
		format: f, Msg: &nats.Msg{Header: nats.Header{}}, repeatPayload: cfg.Headers || f == format.Upsert,
		nativeHeaders: map[string][]string{},
	}
	if cfg.Headers || f == format.CloudEvents || f == format.CloudEventsStructured {
		m.Header[headerContentType] = []string{f.ContentType()}
	}
	for _, name := range []string{headerID, headerType, headerCluster, headerResource, headerKey, headerResourceVersion} {
		m.nativeHeaders[name] = []string{""}
	}
	switch f {
	case format.CloudEvents:
		m.Header["ce-datacontenttype"] = []string{f.ContentType()}
		attributes := newAttributes(m.Header)
		m.setFormatHeaders = func(c *event.Change) {
			attributes.setAttributes(c)
			m.setNativeHeaders(c, false)
		}
	case format.CloudEventsStructured:
		// Readers take a message with attributes in its headers for binary mode, so structured mode has none.
		m.setFormatHeaders = func(c *event.Change) { m.setNativeHeaders(c, false) }
	default:
		m.setFormatHeaders = func(c *event.Change) { m.setNativeHeaders(c, m.repeatPayload) }
	}
	return m
}

// storedOffset is the value of the header Kubecdc-Offset on messages of a batch. After a crash the newest one in the stream
// marks where to resume.
type storedOffset struct {
	offset uint64 // in the journal
	epoch  string // scope of offset; offsets of different epochs are not comparable
	batch  string // ID of the batch
}

// setBatchStart sets the headers of the first message of a batch: the stream, and the last sequence that it must have. The
// second message needs clearBatchStart.
func (m *message) setBatchStart(stream string, last uint64) {
	m.Header[headerOffset] = m.offsetHeader[:]
	m.Header[nats.ExpectedStreamHdr] = []string{stream}
	m.Header[nats.ExpectedLastSeqHdr] = []string{strconv.FormatUint(last, 10)}
}

func (m *message) clearBatchStart() {
	delete(m.Header, nats.ExpectedStreamHdr)
	delete(m.Header, nats.ExpectedLastSeqHdr)
}

// setOffsetAndReply sets the stored offset and the reply subject of a message of a batch. Both share one string, because
// this is an allocation per change.
func (m *message) setOffsetAndReply(o storedOffset, b *openBatch, call string, operation int) {
	header := append(strconv.AppendUint(m.scratch[:0], o.offset, 10), ' ')
	header = append(append(append(header, o.epoch...), ' '), o.batch...)
	m.scratch = b.appendReply(header, call, uint64(len(b.offsets))+1, operation)
	text := string(m.scratch)
	m.offsetHeader[0], m.Reply = text[:len(header)], text[len(header):]
}

// storedOffsetOf returns the stored offset of a message in the stream; false if the message was not sent in a batch.
func storedOffsetOf(m stream.Message) (o storedOffset, ok bool) {
	parts := strings.Split(m.Header(headerOffset), " ")
	if len(parts) != 3 {
		return o, false
	}
	offset, err := strconv.ParseUint(parts[0], 10, 64)
	return storedOffset{offset, parts[1], parts[2]}, err == nil
}

// setMessageID sets the headers of a message outside a batch: the stream drops another message with the same ID.
func (m *message) setMessageID(stream, id string) {
	m.Header[nats.ExpectedStreamHdr] = []string{stream}
	m.Header[nats.MsgIdHdr] = []string{id}
}

// changeMessageID returns the ID by which the stream recognises a copy: the ID of the change. // I4
func changeMessageID(c *event.Change) string {
	if c.DeadLetter != nil { // another sink may have put the change itself into the stream
		return c.ID() + deadLetterInfix + c.DeadLetter.Sink
	}
	return c.ID()
}

// deadLetterInfix separates the ID of a dead letter's change from the name of its sink.
const deadLetterInfix = "/dead-letter/"

// setNativeHeaders sets the headers with facts that the payload lacks and, with repeat, those that repeat the payload.
func (m *message) setNativeHeaders(c *event.Change, repeat bool) {
	m.setFactHeaders(c)
	if m.hasNative { // saves the map operations when the headers were never set
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

// setFactHeaders sets the headers with facts that the payload lacks: a delete without a payload, a truncated row.
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

// setPurgeMarker turns the message of a deleted object into the purge marker of its key, which replaces all earlier values
// of the key (ADR-8). It returns false, and removes the headers of an earlier marker, for every other change.
func (m *message) setPurgeMarker(c *event.Change, expires bool) (marked bool) {
	if c.Type != event.Deleted {
		delete(m.Header, headerOperation)
		delete(m.Header, nats.MsgRollup)
		delete(m.Header, nats.MsgTTLHdr)
		return false
	}
	m.setNativeHeaders(c, true) // a marker has no payload, so the headers identify the change
	m.Header[headerOperation] = []string{operationPurge}
	m.Header[nats.MsgRollup] = []string{nats.MsgRollupSubject}
	if expires {
		m.Header[nats.MsgTTLHdr] = []string{purgeMarkerTTL}
	}
	return true
}

// attributeHeaders sets the CloudEvents attributes of a change as headers of a message (cloudevents/bindings/
// nats-protocol-binding.md, section 3.1.3). The values share one string, so that a change costs one allocation.
type attributeHeaders struct {
	header  nats.Header
	headers []attributeHeader
	text    []byte // scratch: all values, encoded
	value   []byte // scratch: one value, not encoded
}

type attributeHeader struct {
	format.Attribute
	header string
	value  []string // in Header, unless the change lacks the attribute
	end    int      // of the value in attributeHeaders.text
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
		if start == a.end { // the change lacks the attribute
			delete(as.header, a.header)
			continue
		}
		a.value[0] = text[start:a.end]
		as.header[a.header] = a.value
		start = a.end
	}
}

// sampleChange stands for any change in checks of the form of a subject.
var sampleChange event.Change

const hexDigits = "0123456789ABCDEF"

// AppendToken appends text to dst as one subject token and returns the extended slice. Letters, digits, "_" and "-" stay
// as they are, every other byte becomes "=" and two upper-case hexadecimal digits: "web.eu" is "web=2Eeu". Tokens are
// also legal keys of a NATS key-value bucket. Different texts give different tokens.
func AppendToken(dst []byte, text string) []byte {
	for i := 0; i < len(text); i++ {
		if b := text[i]; isPlainByte(b) {
			dst = append(dst, b)
		} else {
			dst = append(dst, '=', hexDigits[b>>4], hexDigits[b&15])
		}
	}
	return dst
}

func isIllegalInName(r rune) bool { return r > 0x7f || !isPlainByte(byte(r)) }

func isPlainByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '_' || b == '-'
}

// objectKey returns the key of the object that a template gives this subject, as [event.Change.Key]; the subject itself if
// the template does not tell objects apart, or gives no such subject.
func objectKey(template, subject string) string {
	parts, tokens := strings.Split(template, "."), strings.Split(subject, ".")
	if len(parts) != len(tokens) {
		return subject
	}
	values := map[string]string{}
	for i, part := range parts {
		if values[part] = tokens[i]; !strings.Contains(part, "{") && part != tokens[i] {
			return subject
		}
	}
	var names []string
	for _, part := range []string{"{cluster}", "{group}", "{resource}", "{namespace}", "{name}"} {
		token, err := url.PathUnescape(strings.ReplaceAll(values[part], "=", "%"))
		if err != nil || token == "" {
			return subject
		}
		if token == sinks.EmptyValue {
			token = ""
		}
		names = append(names, token)
	}
	return strings.Join(names, "/")
}

// subjectPattern returns the wildcard subject that covers every subject of a template.
func subjectPattern(template *sinks.Template) string {
	const mark = "\x00"
	filled := template.AppendName(nil, &sampleChange, func(dst []byte, _ string) []byte { return append(dst, mark...) })
	tokens := strings.Split(string(filled), ".")
	for i, token := range tokens {
		if strings.Contains(token, mark) {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}
