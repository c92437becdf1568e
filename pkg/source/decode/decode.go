package decode

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// Decoder reads the responses about one resource without unmarshaling objects. It is safe for concurrent use.
//
// It expects the form that kube-apiserver writes, one event per line. When two consecutive streams begin with data it cannot
// read, later streams are split by encoding/json, which is about eight times slower and accepts every legal spelling. A
// single failure is a broken connection.
type Decoder struct {
	typeMembers         string // kind and apiVersion of the objects, as JSON members, each with a trailing comma
	metadataOnly        bool   // keep only the metadata of each object
	useStockJSON        atomic.Bool
	failed              atomic.Uint64
	consecutiveFailures atomic.Uint32 // failures since the last success
}

// New returns a decoder for objects of a resource. If metadataOnly, it keeps only the metadata of each object.
func New(r event.Resource, metadataOnly bool) *Decoder {
	apiVersion := schema.GroupVersion{Group: r.Group, Version: r.Version}.String()
	return &Decoder{metadataOnly: metadataOnly, typeMembers: fmt.Sprintf(`"kind":%q,"apiVersion":%q,`, r.Kind, apiVersion)}
}

// Failures returns the number of unparseable responses.
func (d *Decoder) Failures() uint64 { return d.failed.Load() }

// countFailure counts an unparseable response. The text of a proxy's error page does not count.
func (d *Decoder) countFailure(b []byte, err error) error {
	if start := rawjson.SkipSpace(b, 0); start == len(b) || b[start] != '{' {
		return err
	}
	d.failed.Add(1)
	if d.consecutiveFailures.Add(1) == 2 {
		d.useStockJSON.Store(true)
	}
	return err
}

func (d *Decoder) resetFailures() {
	if d.consecutiveFailures.Load() != 0 {
		d.consecutiveFailures.Store(0)
	}
}

// Object reads one object. It copies what it keeps of b.
func (d *Decoder) Object(b []byte) (*deltas.Object, error) {
	var f fields
	if err := scanDocument(b, &f); err != nil {
		return nil, err
	}
	f.parts.MetadataOnly = d.metadataOnly
	o, err := newObject(b, &f, d.typeMembers)
	if err != nil {
		return nil, err
	}
	if d.metadataOnly {
		o.Raw = metadataBody(b, &f, d.typeMembers)
	}
	return o, nil
}

// decodeEvent reads one watch event: {"type":"ADDED","object":{…}}. It copies what it keeps of b. An ERROR event is returned
// as an error.
func (d *Decoder) decodeEvent(b []byte) (e deltas.Event, err error) {
	typ, object, ok := splitEnvelope(b)
	if !ok {
		var w metav1.WatchEvent
		if err := json.Unmarshal(b, &w); err != nil {
			return e, d.countFailure(b, err)
		}
		typ, object = parseEventType([]byte(w.Type)), w.Object.Raw
	}
	if typ == "" {
		return e, d.countFailure(b, errors.New("a watch event of unknown type"))
	}
	if typ == watch.Error {
		status := &metav1.Status{}
		if json.Unmarshal(object, status) != nil {
			return e, d.countFailure(b, errors.New("an ERROR event of a watch without a Status"))
		}
		return e, apierrors.FromObject(KnownStatus(status))
	}
	o, err := d.Object(object)
	if err == nil && typ != watch.Bookmark {
		err = requireName(o)
	}
	if err != nil {
		return e, d.countFailure(b, err)
	}
	d.resetFailures()
	return deltas.Event{Type: typ, Object: o}, nil
}

// requireName rejects an object without a name: it has no identity.
func requireName(o *deltas.Object) error {
	if o.Name == "" {
		return errors.New("an object without metadata.name")
	}
	return nil
}

// splitEnvelope splits an event in the exact form that kube-apiserver writes; ok is false for any other form. If the
// envelope has further members, object includes them; scanDocument, which reads to the last byte, then fails.
func splitEnvelope(b []byte) (typ watch.EventType, object []byte, ok bool) {
	const head, middle = `{"type":"`, `","object":`
	if !bytes.HasPrefix(b, []byte(head)) {
		return "", nil, false
	}
	end := bytes.IndexByte(b[len(head):], '"')
	if end < 0 || !bytes.HasPrefix(b[len(head)+end:], []byte(middle)) {
		return "", nil, false
	}
	object = bytes.TrimRight(b[len(head)+end+len(middle):], " \t\r\n")
	if len(object) < 2 || object[len(object)-1] != '}' {
		return "", nil, false
	}
	return parseEventType(b[len(head) : len(head)+end]), object[:len(object)-1], true
}

// parseEventType returns the event type of this name, or "".
func parseEventType(b []byte) watch.EventType {
	for _, t := range []watch.EventType{watch.Modified, watch.Added, watch.Deleted, watch.Bookmark, watch.Error} {
		if string(b) == string(t) {
			return t
		}
	}
	return ""
}

// metadataBody returns the type and the metadata of an object without managedFields and stamp, in the form and order of the
// whole object. The input is a PartialObjectMetadata, or a whole object from an API server that does not support that form.
func metadataBody(b []byte, f *fields, typeMembers string) []byte {
	const key = `"metadata":`
	out := make([]byte, 0, len(typeMembers)+len(key)+2+f.metadata.end-f.metadata.start)
	out = append(append(append(out, '{'), typeMembers...), key...)
	if f.metadata.isPresent() {
		out = f.cuts.appendWithout(out, b, f.metadata.start, f.metadata.end)
	} else {
		out = append(out, "{}"...)
	}
	return append(out, '}')
}

const (
	// maxEvent bounds one event. etcd accepts objects of a few MiB; a stream without line ends is not a watch.
	maxEvent = 64 << 20
	// maxKept bounds the buffer kept for long events, so that one large object does not pin its memory.
	maxKept = 1 << 20
	// readBuffer is the size of the read buffer of a stream.
	readBuffer = 32 << 10
)

// ErrEnd means that a stream has ended, orderly or cut off.
var ErrEnd = errors.New("the API server ended the watch")

// Stream reads the events of one watch. It is used by one goroutine.
type Stream struct {
	decoder *Decoder
	frames  frameReader
}

// Stream returns a stream of the events in r.
func (d *Decoder) Stream(r io.Reader) *Stream {
	if d.useStockJSON.Load() {
		return &Stream{d, &valueFrames{dec: json.NewDecoder(r)}}
	}
	return &Stream{d, &lineFrames{r: bufio.NewReaderSize(r, readBuffer)}}
}

// Next returns the next event and its size in bytes. An incomplete event at the end of the stream is dropped. Errors are
// ErrEnd, those of the reader, those of unparseable events, and the status in an ERROR event.
func (s *Stream) Next() (e deltas.Event, size int, err error) {
	frame, err := s.frames.nextFrame()
	if err == nil {
		e, err = s.decoder.decodeEvent(frame)
		return e, len(frame), err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) || utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err) {
		return e, 0, ErrEnd
	}
	return e, 0, err
}

// Buffered reports whether Next would return without reading from the connection.
func (s *Stream) Buffered() bool { return s.frames.frameBuffered() }

// frameReader splits the bytes of a watch into events.
type frameReader interface {
	// nextFrame returns the next event; it is valid until the next call. An incomplete event at the end of the stream is
	// dropped.
	nextFrame() ([]byte, error)
	// frameBuffered reports whether nextFrame would return without reading.
	frameBuffered() bool
}

// lineFrames splits at newlines. Every server built on k8s.io/apiserver writes one event per line, because it uses
// encoding/json's Encoder, and JSON has no newline inside a string. The API does not guarantee that; see Decoder for streams
// in another form.
type lineFrames struct {
	r        *bufio.Reader
	longLine []byte // holds a line longer than the buffer
}

func (l *lineFrames) nextFrame() ([]byte, error) {
	for {
		line, err := l.readLine()
		if len(bytes.TrimSpace(line)) > 0 || err != nil {
			return line, err
		}
	}
}

func (l *lineFrames) readLine() ([]byte, error) {
	part, err := l.r.ReadSlice('\n')
	if err == nil {
		return part, nil
	}
	l.longLine = append(l.longLine[:0], part...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(l.longLine) > maxEvent {
			return nil, fmt.Errorf("the API server sent an event of more than %d MiB", maxEvent>>20)
		}
		part, err = l.r.ReadSlice('\n')
		l.longLine = append(l.longLine, part...)
	}
	if err != nil {
		return nil, err
	}
	line := l.longLine
	if cap(l.longLine) > maxKept {
		l.longLine = nil
	}
	return line, nil
}

func (l *lineFrames) frameBuffered() bool {
	b, err := l.r.Peek(l.r.Buffered())
	return err == nil && bytes.IndexByte(b, '\n') >= 0
}

// valueFrames splits at JSON values, whatever white space is between them.
type valueFrames struct {
	dec *json.Decoder
	raw json.RawMessage
}

func (v *valueFrames) nextFrame() ([]byte, error) {
	err := v.dec.Decode(&v.raw)
	return v.raw, err
}

func (v *valueFrames) frameBuffered() bool { return false }

// A failure has text of what failed: a conversion or admission webhook, an aggregated API server, a proxy. It may quote the
// object that it failed on, and would go to logs and conditions, which show no values. knownTexts are the beginnings of
// texts that API servers themselves write, up to where others may have added theirs.
var knownTexts = []*regexp.Regexp{
	regexp.MustCompile(`^(Internal error occurred: )?storage is \(re\)initializing$`),
	regexp.MustCompile(`^too old resource version: \d+( \(\d+\))?$`),
	regexp.MustCompile(`^(Timeout: )?Too large resource version: \d+, current: \d+$`),
	regexp.MustCompile(`^The provided continue parameter is too old`),
	regexp.MustCompile(`^The resourceVersion for the provided (watch|list) is too old`),
	regexp.MustCompile(`^(the server could not find the requested resource|Unauthorized|Forbidden|Internal Server Error|not found|` +
		`page not found|service unavailable|error trying to reach service|Client sent an HTTP request to an HTTPS server|apiserver not ready|unable to decode an event from the watch stream|` +
		`context (deadline exceeded|canceled)|the server is currently unable to handle the request)`),
	regexp.MustCompile(`^[a-z0-9.-]+( "[a-zA-Z0-9.:-]*")? is forbidden: User "[a-zA-Z0-9.:@_/-]*" cannot [a-z]+ resource "[a-z0-9./-]*"` +
		`( in API group "[a-z0-9.-]*")?( at the cluster scope| in the namespace "[a-z0-9-]*")?`),
	regexp.MustCompile(`^(rpc error: code = [a-zA-Z]+ desc = )?etcdserver: (request timed out|leader changed|no leader|too many requests|not capable|server stopped|` +
		`mvcc: (database space exceeded|required revision has been compacted))`),
	regexp.MustCompile(`^conversion webhook for [a-z0-9./-]+, Kind=[a-zA-Z0-9]+ failed`),
	regexp.MustCompile(`^admission webhook "[a-z0-9.-]+" denied the request`),
	regexp.MustCompile(`^The order in patch list|^Operation cannot be fulfilled on [a-z0-9.]+`),
}

// knownReasons are the reasons of API servers; other servers may choose any text.
var knownReasons = []metav1.StatusReason{
	metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden, metav1.StatusReasonNotFound, metav1.StatusReasonAlreadyExists,
	metav1.StatusReasonConflict, metav1.StatusReasonGone, metav1.StatusReasonInvalid, metav1.StatusReasonServerTimeout,
	metav1.StatusReasonStoreReadError, metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests,
	metav1.StatusReasonBadRequest, metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonNotAcceptable,
	metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonUnsupportedMediaType, metav1.StatusReasonInternalError,
	metav1.StatusReasonExpired, metav1.StatusReasonServiceUnavailable,
}

// KnownStatus returns what a failure is, without text that may quote an object: code, reason, kinds of causes, and as
// message a known text.
func KnownStatus(of *metav1.Status) *metav1.Status {
	known := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: of.Code}
	if slices.Contains(knownReasons, of.Reason) {
		known.Reason = of.Reason
	}
	if of.Details != nil {
		known.Details = &metav1.StatusDetails{RetryAfterSeconds: of.Details.RetryAfterSeconds}
		for _, c := range of.Details.Causes {
			if c.Type == metav1.CauseTypeResourceVersionTooLarge {
				known.Details.Causes = append(known.Details.Causes, metav1.StatusCause{Type: c.Type})
			}
		}
	}
	for _, text := range knownTexts {
		if known.Message = text.FindString(of.Message); known.Message != "" {
			return known
		}
	}
	status := strings.TrimSpace(fmt.Sprintf("%d %s", of.Code, known.Reason))
	known.Message = fmt.Sprintf("status %s; its text is left out, because it may quote objects", status)
	return known
}
