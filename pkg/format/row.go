package format

import (
	"bytes"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// OmittedMember is the first member of a truncated row in the formats [Upsert] and [Debezium]. It lists the members that
// were omitted because the destination rejected the row as too large. Readers of these formats only see the row, and would
// take a missing spec for an object without one.
const OmittedMember = "kubecdcOmitted"

// nonObjectMembers are the values of event.Change.Omitted that are not members of the object.
var nonObjectMembers = []string{"before", "changed"}

// appendRow appends an object as a row, and marks it if it is incomplete.
func appendRow(b, object []byte, c *event.Change) []byte {
	var names []string
	for _, name := range c.Omitted {
		if !slices.Contains(nonObjectMembers, name) {
			names = append(names, name)
		}
	}
	rest, isObject := bytes.CutPrefix(bytes.TrimSpace(object), []byte("{"))
	if len(names) == 0 || !isObject {
		return append(b, object...)
	}
	b = appendList(append(b, '{'), `"`+OmittedMember+`":`, names)
	if rest = bytes.TrimSpace(rest); rest[0] != '}' {
		b = append(b, ',')
	}
	return append(b, rest...)
}
