package corpus

import (
	"bytes"
	"fmt"
	"strconv"
	"time"
)

// variants is how many templates a family has. Pods of one template belong to one ReplicaSet.
const variants = 40

// field is a part of an object that differs between objects or between states of one.
type field uint8

const (
	fieldName field = iota
	fieldNamespace
	fieldUID
	fieldRV
	fieldCreated
	fieldNow
	fieldPodIP
	fieldHostIP
	fieldNode
	fieldReady
	fieldCount
	fieldDigest // 64 digits of the object, another at each place
	fields
)

// tokens stand for the fields in the JSON a template is made of.
var tokens = [fields]string{
	fieldName: "{{name}}", fieldNamespace: "{{namespace}}", fieldUID: "{{uid}}", fieldRV: "{{rv}}",
	fieldCreated: "1999-01-01T00:00:00Z", fieldNow: "1999-02-02T00:00:00Z",
	fieldPodIP: "{{podIP}}", fieldHostIP: "{{hostIP}}", fieldNode: "{{node}}",
	fieldReady: "{{ready}}", fieldCount: "1999333", fieldDigest: "{{digest}}",
}

// template is the JSON of an object cut at its fields: literals[i] stands before gaps[i], and the last literal ends it.
type template struct {
	literals [][]byte
	gaps     []field
}

// cut makes a template of JSON that holds tokens.
func cut(text []byte) (template, error) {
	var t template
	for {
		at, which := len(text), fields
		for f, token := range tokens {
			if i := bytes.Index(text[:at], []byte(token)); i >= 0 {
				at, which = i, field(f)
			}
		}
		t.literals = append(t.literals, text[:at])
		if which == fields {
			break
		}
		t.gaps = append(t.gaps, which)
		text = text[at+len(tokens[which]):]
	}
	if len(t.gaps) < 4 {
		return template{}, fmt.Errorf("a template with %d fields", len(t.gaps))
	}
	return t, nil
}

func makeTemplates(seed uint64) ([][]template, error) {
	all := make([][]template, families)
	for f := range families {
		for v := range variants {
			s := newStream(seed, streamVariant, uint64(f)<<32|uint64(v))
			text, err := f.marshal(&s)
			if err != nil {
				return nil, err
			}
			t, err := cut(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.resource(), err)
			}
			all[f] = append(all[f], t)
		}
	}
	return all, nil
}

// marshal makes the JSON of a template.
func (f family) marshal(s *stream) ([]byte, error) {
	switch f {
	case smallPod:
		return marshalPod(s, smallShape)
	case largePod:
		return marshalPod(s, largeShape)
	default:
		return marshalEvent(s)
	}
}

// AppendFrame appends the watch frame of e: one line of JSON that ends in a newline.
func (c *Corpus) AppendFrame(b []byte, e Entry) []byte {
	b = append(append(append(b, `{"type":"`...), e.Type.String()...), `","object":`...)
	b = c.AppendObject(b, e)
	return append(b, "}\n"...)
}

// AppendObject appends the object of e as JSON, beginning with its kind and apiVersion.
func (c *Corpus) AppendObject(b []byte, e Entry) []byte {
	o := c.objects[e.Object]
	t := c.templates[o.family][o.variant]
	r := renderer{
		corpus: c, entry: e, object: o,
		own:     newStream(c.seed, streamObject, uint64(e.Object)),
		version: newStream(c.seed, streamVersion, e.RV),
	}
	for i, gap := range t.gaps {
		b = append(b, t.literals[i]...)
		b = r.appendField(b, gap)
	}
	return append(b, t.literals[len(t.gaps)]...)
}

// renderer fills the gaps of one template for one entry.
type renderer struct {
	corpus  *Corpus
	entry   Entry
	object  object
	own     stream
	version stream
	places  uint64 // digests so far
}

func (r *renderer) appendField(b []byte, f field) []byte {
	own, version := r.own, r.version // copies: the same field has the same value everywhere in the object
	switch f {
	case fieldName:
		_, name := r.corpus.name(r.object)
		return append(b, name...)
	case fieldNamespace:
		namespace, _ := r.corpus.name(r.object)
		return append(b, namespace...)
	case fieldUID:
		s := newStream(r.corpus.seed, streamUID, uint64(r.entry.Object))
		return s.appendUID(b)
	case fieldRV:
		return strconv.AppendUint(b, r.entry.RV, 10)
	case fieldCreated:
		return epoch.Add(time.Duration(r.entry.Object)*time.Second).AppendFormat(b, time.RFC3339)
	case fieldNow:
		return epoch.Add(time.Duration(r.entry.RV-firstRV)*time.Second).AppendFormat(b, time.RFC3339)
	case fieldPodIP:
		return fmt.Appendf(b, "10.%d.%d.%d", 64+own.below(64), own.below(256), own.below(256))
	case fieldHostIP:
		return fmt.Appendf(b, "10.1.%d.%d", own.below(4), own.below(250))
	case fieldNode:
		return fmt.Appendf(b, "ip-10-1-%d-%d.eu-west-1.compute.internal", own.below(4), own.below(250))
	case fieldReady:
		return append(b, [...]string{"True", "False"}[version.below(8)/7]...)
	case fieldCount:
		return strconv.AppendInt(b, int64(1+version.below(90)), 10)
	default:
		r.places++
		digest := newStream(r.corpus.seed, streamObject, uint64(r.entry.Object)|r.places<<32)
		return digest.appendHex(b, 64)
	}
}

// name derives namespace and name from the slot, so that an object created again gets those of its predecessor.
func (c *Corpus) name(o object) (namespace, name string) {
	s := newStream(c.seed, streamName, uint64(o.slot))
	namespace = "team-" + strconv.Itoa(s.below(50))
	app := applications[s.below(len(applications))]
	suffix := s.appendOf(nil, "bcdfghjklmnpqrstvwxz2456789", 5)
	if o.family == eventObject {
		return namespace, app + "-" + string(s.appendHex(nil, 10)) + "-" + string(suffix) + "." + strconv.FormatUint(0x17f0000000000000|uint64(o.slot), 16)
	}
	return namespace, fmt.Sprintf("%s-%s-%s%d", app, s.appendHex(nil, 9), suffix, o.slot)
}
