package format

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// ContentTypeJSON is the media type of what [AppendJSON] writes.
const ContentTypeJSON = "application/json"

// AppendJSON appends c in the native format to b and returns the extended slice: one JSON object without a newline outside
// the bodies. The members and their order are a contract (docs/events-reference.md). It allocates only if b is too small.
// Before, After and Changed must be valid JSON; they are copied unchanged.
func AppendJSON(b []byte, c *event.Change) []byte {
	b = appendUnclosedFacts(b, c)
	b = appendBody(b, `,"changed":`, c.Changed)
	b = appendBody(b, `,"before":`, c.Before)
	b = appendBody(b, `,"after":`, c.After)
	return append(b, '}')
}

// AppendFacts appends the native object without before and after, and with the paths of changed only: the facts of the
// change without the contents of the object. See [Format.NeedsFactsHeader].
func AppendFacts(b []byte, c *event.Change) []byte {
	b = appendUnclosedFacts(b, c)
	if !c.HasValues() {
		return append(appendBody(b, `,"changed":`, c.Changed), '}')
	}
	b, separator := append(b, `,"changed":`...), byte('[')
	for difference := range rawjson.Value(c.Changed).Elements() {
		b = append(append(b, separator), difference.Member("path")...)
		separator = ','
	}
	if separator == '[' {
		b = append(b, '[')
	}
	return append(b, "]}"...)
}

// appendUnclosedFacts appends the facts without the closing brace.
func appendUnclosedFacts(b []byte, c *event.Change) []byte {
	b = append(b, `{"id":`...)
	b = appendID(b, c)
	b = appendMember(b, `,"type":`, string(c.Type))
	b = appendMember(b, `,"cluster":`, c.Cluster)
	b = appendMember(b, `,"group":`, c.Resource.Group)
	b = appendMember(b, `,"version":`, c.Resource.Version)
	b = appendMember(b, `,"resource":`, c.Resource.Resource)
	b = appendMember(b, `,"kind":`, c.Resource.Kind)
	b = appendOptional(b, `,"namespace":`, c.Namespace)
	b = appendOptional(b, `,"name":`, c.Name)
	b = appendVersionFacts(b, c)
	b = appendSnapshot(b, c)
	b = appendGap(b, c.Gap)
	b = appendWatermark(b, c.Watermark)
	b = appendReplay(b, c.Replay)
	b = appendAttribution(b, c.Attribution)
	if c.Held != nil && c.Held.Unknown != "" {
		b = append(appendMember(b, `,"by":{"unknown":`, c.Held.Unknown), '}')
	}
	b = appendDeadLetter(b, c.DeadLetter)
	return appendList(b, `,"omitted":`, c.Omitted)
}

// appendVersionFacts appends the version of the object, how it was observed, and its actor and class.
func appendVersionFacts(b []byte, c *event.Change) []byte {
	b = appendOptional(b, `,"uid":`, c.UID)
	b = appendOptional(b, `,"resourceVersion":`, c.ResourceVersion)
	b = appendOptional(b, `,"listVersion":`, c.ListVersion)
	if c.Generation != 0 {
		b = strconv.AppendInt(append(b, `,"generation":`...), c.Generation, 10)
	}
	b = append(b, `,"observedAt":"`...)
	b = append(c.ObservedAt.UTC().AppendFormat(b, time.RFC3339Nano), '"')
	b = appendChangeTime(b, c.ChangedAt)
	b = appendOptional(b, `,"delta":`, string(c.Delta))
	if c.Coalesced {
		b = append(b, `,"coalesced":true`...)
	}
	if c.FinalStateUnknown {
		b = append(b, `,"finalStateUnknown":true`...)
	}
	if c.Left {
		b = append(b, `,"left":true`...)
	}
	if c.RedactionChanged {
		b = append(b, `,"redactionChanged":true`...)
	}
	b = appendActor(b, c.Actor)
	return appendOptional(b, `,"class":`, string(c.Class))
}

func appendChangeTime(b []byte, t event.ChangeTime) []byte {
	if t.At.IsZero() {
		return b
	}
	b = t.At.UTC().AppendFormat(append(b, `,"changedAt":{"at":"`...), time.RFC3339Nano)
	if !t.NotBefore.IsZero() {
		b = t.NotBefore.UTC().AppendFormat(append(b, `","notBefore":"`...), time.RFC3339Nano)
	}
	b = append(append(b, `","source":"`...), t.Source...)
	return append(b, `"}`...)
}

// timeOf returns when the change was made at the latest, and otherwise when the exporter read it.
func timeOf(c *event.Change) time.Time {
	if c.ChangedAt.At.IsZero() {
		return c.ObservedAt
	}
	return c.ChangedAt.At
}

func appendActor(b []byte, a *event.Actor) []byte {
	if a == nil {
		return b
	}
	b = appendMember(b, `,"actor":{"manager":`, a.Manager)
	b = appendMember(b, `,"operation":`, a.Operation)
	b = appendOptional(b, `,"subresource":`, a.Subresource)
	b = appendOptional(b, `,"time":`, a.Time)
	return append(b, '}')
}

// appendSnapshot appends the snapshot that c belongs to. Only end records have position, count and digest.
func appendSnapshot(b []byte, c *event.Change) []byte {
	s := c.Snapshot
	if s == nil {
		return b
	}
	b = appendMember(b, `,"snapshot":{"id":`, s.ID)
	if c.Type == event.SnapshotEnd || c.Type == event.PartialEnd {
		b = appendMember(b, `,"position":`, s.Position)
		b = strconv.AppendInt(append(b, `,"count":`...), int64(s.Count), 10)
		b = appendMember(b, `,"digest":`, s.Digest)
	}
	return append(b, '}')
}

func appendGap(b []byte, g *event.GapInfo) []byte {
	if g == nil {
		return b
	}
	b = appendMember(b, `,"gap":{"from":`, g.From)
	b = appendMember(b, `,"to":`, g.To)
	b = appendMember(b, `,"reason":`, g.Reason)
	return append(b, '}')
}

func appendWatermark(b []byte, w *event.WatermarkInfo) []byte {
	if w == nil {
		return b
	}
	b = appendMember(b, `,"watermark":{"epoch":`, w.Epoch)
	b = strconv.AppendUint(append(b, `,"sequence":`...), w.Sequence, 10)
	b = strconv.AppendInt(append(b, `,"lane":`...), int64(w.Lane), 10)
	b = strconv.AppendInt(append(b, `,"lanes":`...), int64(w.Lanes), 10)
	if w.Algorithm != "" {
		b = appendMember(b, `,"algorithm":`, w.Algorithm)
		b = strconv.AppendInt(append(b, `,"count":`...), int64(w.Count), 10)
		b = appendMember(b, `,"digest":`, w.Digest)
	}
	return append(b, '}')
}

func appendReplay(b []byte, r *event.ReplayInfo) []byte {
	if r == nil {
		return b
	}
	b = appendMember(b, `,"replay":{"id":`, r.ID)
	if r.State == "" {
		b = appendMember(b, `,"of":`, r.Of)
		return append(appendMember(b, `,"type":`, string(r.Type)), '}')
	}
	b = appendMember(b, `,"state":`, r.State)
	b = strconv.AppendInt(append(b, `,"count":`...), int64(r.Count), 10)
	return append(appendOptional(b, `,"reason":`, r.Reason), '}')
}

func appendAttribution(b []byte, a *event.Attribution) []byte {
	if a == nil {
		return b
	}
	b = appendOptional(b, `,"of":`, a.Of)
	b = appendIdentity(b, `,"by":`, &a.By)
	if a.RequestedBy != nil {
		b = appendIdentity(b, `,"requestedBy":`, a.RequestedBy)
	}
	return appendMember(b, `,"certainty":`, a.Certainty)
}

func appendIdentity(b []byte, member string, i *event.Identity) []byte {
	b = appendMember(append(append(b, member...), '{'), `"user":`, i.User)
	b = appendOptional(b, `,"uid":`, i.UID)
	b = appendList(b, `,"groups":`, i.Groups)
	b = appendOptional(b, `,"impersonator":`, i.Impersonator)
	b = appendOptional(b, `,"impersonationConstraint":`, i.ImpersonationConstraint)
	b = appendMember(b, `,"verb":`, i.Verb)
	b = appendOptional(b, `,"subresource":`, i.Subresource)
	b = append(i.Received.UTC().AppendFormat(append(b, `,"received":"`...), time.RFC3339Nano), `","claimed":{`...)
	start := len(b)
	b = appendOptional(b, `,"userAgent":`, i.UserAgent)
	b = appendList(b, `,"sourceIPs":`, i.SourceIPs)
	b = appendOptional(b, `,"auditID":`, i.AuditID)
	if len(b) > start { // drop the first comma
		b = append(b[:start], b[start+1:]...)
	}
	return append(b, "}}"...)
}

func appendDeadLetter(b []byte, d *event.DeadLetterInfo) []byte {
	if d == nil {
		return b
	}
	b = appendMember(b, `,"deadLetter":{"sink":`, d.Sink)
	b = appendMember(b, `,"reason":`, d.Reason)
	return append(b, '}')
}

func appendList(b []byte, member string, values []string) []byte {
	if len(values) == 0 {
		return b
	}
	b = append(append(b, member...), '[')
	for i, value := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, value)
	}
	return append(b, ']')
}

func appendBody(b []byte, member string, body []byte) []byte {
	if len(body) == 0 {
		return b
	}
	return append(append(b, member...), body...)
}

func appendOptional(b []byte, member, value string) []byte {
	if value == "" {
		return b
	}
	return appendMember(b, member, value)
}

// appendID appends the ID of a change as a JSON string.
func appendID(b []byte, c *event.Change) []byte {
	start := len(b)
	b = c.AppendID(append(b, '"'))
	for _, ch := range b[start+1:] {
		if needsEscape(ch) {
			return appendEscaped(b[:start], string(b[start+1:]))
		}
	}
	return append(b, '"')
}

func appendMember(b []byte, member, value string) []byte {
	return appendString(append(b, member...), value)
}

// appendString appends s as a JSON string. Kubernetes names need no escaping, so the common case is one copy.
func appendString(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if needsEscape(s[i]) {
			return appendEscaped(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// needsEscape reports whether ch may need an escape in a JSON string.
func needsEscape(ch byte) bool { return ch < 0x20 || ch == '"' || ch == '\\' || ch >= utf8.RuneSelf }

func appendEscaped(b []byte, s string) []byte {
	q, err := json.Marshal(s)
	if err != nil { // unreachable: every Go string can be encoded
		return append(b, `""`...)
	}
	return append(b, q...)
}

// AppendDeadLetter appends a dead letter of a journal: with its change, or without bodies.
func AppendDeadLetter(b []byte, d event.DeadLetter, whole bool) []byte {
	c := d.Change
	b = strconv.AppendUint(append(b, `{"offset":`...), d.Offset, 10)
	b = appendMember(b, `,"time":`, d.Time.UTC().Format(time.RFC3339Nano))
	b = appendMember(b, `,"reason":`, d.Reason)
	if whole {
		return append(AppendJSON(append(b, `,"change":`...), c), '}')
	}
	b = appendMember(b, `,"id":`, c.ID())
	b = appendMember(b, `,"type":`, string(c.Type))
	b = appendMember(b, `,"resource":`, c.Resource.String())
	b = appendOptional(b, `,"namespace":`, c.Namespace)
	return append(appendOptional(b, `,"name":`, c.Name), '}')
}
