package deltas

import (
	"encoding/binary"
	"encoding/json"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// A summary is a compact record of an object's state, used to find the part that the next change touches and the writer of
// that change: a digest of each part, and a few bytes for each entry of metadata.managedFields. It is written by
// [AppendParts] followed by [AppendWriter] for each entry, stored in event.Known, and compared in Step. Digests must not
// depend on the process.
//
//	form and flags  1
//	metadata        8   digest, without resourceVersion, generation and managedFields
//	status          8   digest
//	the rest        8   digest, without kind and apiVersion, which items of lists lack
//	entry          15 each: identity 4, time 4, fields 4, size of the fields 3
const (
	summaryVersion          = 1      // any other version counts as no summary
	summaryDeleting         = 1 << 7 // metadata.deletionTimestamp is set
	summaryWritersTruncated = 1 << 6 // not all entries of managedFields are included
	summaryMetadataOnly     = 1 << 5 // built from metadata only: other parts are not known
	partsSize               = 25
	writerSize              = 15
	maxFieldsSize           = 1<<24 - 1
)

// Parts are digests of the parts of an object.
type Parts struct {
	Metadata, Status, Rest uint64
	Deleting               bool // metadata.deletionTimestamp is set
	WritersTruncated       bool // not all entries of managedFields follow
	MetadataOnly           bool // only the metadata of the object was read
}

// AppendParts appends the start of a summary.
func AppendParts(b []byte, p Parts) []byte {
	head := byte(summaryVersion)
	if p.Deleting {
		head |= summaryDeleting
	}
	if p.WritersTruncated {
		head |= summaryWritersTruncated
	}
	if p.MetadataOnly {
		head |= summaryMetadataOnly
		p.Status, p.Rest = 0, 0
	}
	b = append(b, head)
	b = binary.LittleEndian.AppendUint64(b, p.Metadata)
	b = binary.LittleEndian.AppendUint64(b, p.Status)
	return binary.LittleEndian.AppendUint64(b, p.Rest)
}

// AppendWriter appends one entry of managedFields: digests of its identity (all members except time and fields), of its time
// and of its fields, and the size of the fields in bytes.
func AppendWriter(b []byte, identity, time, fields uint64, size int) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(identity))
	b = binary.LittleEndian.AppendUint32(b, uint32(time))
	b = binary.LittleEndian.AppendUint32(b, uint32(fields))
	size = min(size, maxFieldsSize)
	return append(b, byte(size), byte(size>>8), byte(size>>16))
}

// AppendNames appends the names that belong to an entry of the summary; they are not stored. The arguments are the contents
// of JSON strings, including escapes.
func AppendNames(b, manager, operation, subresource, time []byte) []byte {
	for _, text := range [...][]byte{manager, operation, subresource, time} {
		b = append(append(b, text...), 0) // JSON strings contain no NUL
	}
	return b
}

// ForgetParts returns a summary of an object that was read in another form: its parts cannot be compared with those of the
// current one, its writers can. It differs from every summary of a state.
func ForgetParts(summary string) string {
	if !isUsableSummary(summary) {
		return ""
	}
	parts := AppendParts(nil, Parts{
		Deleting: summary[0]&summaryDeleting != 0, WritersTruncated: hasTruncatedWriters(summary), MetadataOnly: true,
	})
	return string(parts) + summary[partsSize:]
}

func isUsableSummary(summary string) bool {
	const flags = summaryDeleting | summaryWritersTruncated | summaryMetadataOnly
	return len(summary) >= partsSize && summary[0]&^flags == summaryVersion
}

func hasTruncatedWriters(summary string) bool { return summary[0]&summaryWritersTruncated != 0 }

// classOf returns the part that differs between two summaries of one object; "" if a summary is missing, or was built from
// metadata only or in another form. An update of bookkeeping only, such as field ownership, is of class metadata.
func classOf(was, is string) event.Class {
	if !isUsableSummary(was) || !isUsableSummary(is) {
		return ""
	}
	part := func(i int) bool { return was[1+8*i:9+8*i] != is[1+8*i:9+8*i] }
	switch {
	case was[0]&summaryDeleting == 0 && is[0]&summaryDeleting != 0:
		return event.ClassDeleting
	case (was[0]|is[0])&summaryMetadataOnly != 0:
		return ""
	case part(2):
		return event.ClassSpec
	case part(1):
		return event.ClassStatus
	}
	return event.ClassMetadata
}

// actorOfUpdate returns the actor of one write: the entry of managedFields that the write changed. It returns nil if there
// is no such entry or more than one candidate, because a wrong actor is worse than none.
//
// The API server (KEP-555; apimachinery's util/managedfields, structured-merge-diff) moves the fields that a write changed
// to the writer's entry and renews its time, which has a resolution of one second. A write through scale leaves an entry
// without a time. Every other entry can only lose fields. The writer's entry is therefore the one that is new or has another
// time, and if there is none, the one with fields that changed without shrinking. A write leaves no trace if it only removes
// fields, repeats the previous write within the same second, or bypasses field managers (deletion, binding, eviction).
func actorOfUpdate(was, is, names string) *event.Actor {
	if !isUsableSummary(was) || !isUsableSummary(is) || hasTruncatedWriters(was) || hasTruncatedWriters(is) {
		return nil
	}
	renewed, grown := -1, -1
	const several = -2
	note := func(found *int, i int) {
		if *found != -1 {
			i = several
		}
		*found = i
	}
	for i := range countWriters(is) {
		entry := writerEntry(is, i)
		old, ok := findWriter(was, entry[:4])
		switch {
		case ok && old == entry, isServerManaged(names, i):
		case !ok, old[4:8] != entry[4:8]:
			note(&renewed, i)
		case fieldsSize(entry) >= fieldsSize(old):
			note(&grown, i)
		}
	}
	if renewed != -1 {
		return actorFromNames(names, renewed)
	}
	return actorFromNames(names, grown)
}

// noSummary stands for an object that is known without a summary.
const noSummary = "none"

// hasTimedWrite reports whether the newest time in an object is that of its last write, as far as two states show it: an
// entry was renewed, or the deletion began. Where fields were removed, a later write may have done no more than that.
func hasTimedWrite(was, is string) bool {
	if !isUsableSummary(was) || !isUsableSummary(is) || hasTruncatedWriters(was) || hasTruncatedWriters(is) {
		return false
	}
	timed, size := was[0]&summaryDeleting < is[0]&summaryDeleting, 0
	for i := range countWriters(was) {
		size -= fieldsSize(writerEntry(was, i))
	}
	for i := range countWriters(is) {
		entry := writerEntry(is, i)
		old, ok := findWriter(was, entry[:4])
		timed = timed || !ok || old[4:8] != entry[4:8]
		size += fieldsSize(entry)
	}
	return timed && size >= 0
}

// actorOfCreate returns the actor that created an object that was not known. There is exactly one entry then. With more
// entries, the object entered the selection later, or was created with foreign entries.
func actorOfCreate(is, names string) *event.Actor {
	if !isUsableSummary(is) || hasTruncatedWriters(is) || countWriters(is) != 1 || isServerManaged(names, 0) {
		return nil
	}
	return actorFromNames(names, 0)
}

func countWriters(summary string) int { return (len(summary) - partsSize) / writerSize }

func writerEntry(summary string, i int) string {
	return summary[partsSize+i*writerSize:][:writerSize]
}

func fieldsSize(entry string) int { return int(entry[12]) | int(entry[13])<<8 | int(entry[14])<<16 }

func findWriter(summary, identity string) (entry string, ok bool) {
	for i := range countWriters(summary) {
		if entry := writerEntry(summary, i); entry[:4] == identity {
			return entry, true
		}
	}
	return "", false
}

// isServerManaged reports whether the entry is maintained by the API server itself, for fields of unknown managers.
func isServerManaged(names string, i int) bool {
	manager, _, _ := strings.Cut(namesFrom(names, i), "\x00")
	return manager == "ancient-changes" || manager == "before-first-apply"
}

// namesFrom returns names without those of the entries before i.
func namesFrom(names string, i int) string {
	for range 4 * i {
		_, names, _ = strings.Cut(names, "\x00")
	}
	return names
}

func actorFromNames(names string, i int) *event.Actor {
	if i < 0 {
		return nil
	}
	a := &event.Actor{}
	names = namesFrom(names, i)
	for _, text := range [...]*string{&a.Manager, &a.Operation, &a.Subresource, &a.Time} {
		*text, names, _ = strings.Cut(names, "\x00")
		*text = unescapeJSON(*text)
	}
	return a
}

// unescapeJSON returns the text of a JSON string given without its quotes. It may share memory with s: names are in the same
// string as the identity of their object, which every change refers to.
func unescapeJSON(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var text string
	if json.Unmarshal([]byte(`"`+s+`"`), &text) != nil {
		return s
	}
	return text
}
