package format

import (
	"bytes"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// OmittedMember is the member at the top of a row, in the formats [Upsert] and [Debezium], that names what was left out of
// the object so that the destination takes it. Readers of these formats look at nothing but the row, and a missing spec
// would otherwise say that there is none.
const OmittedMember = "kubecdcOmitted"

// nonObjectMembers are the members of event.Change.Omitted that are no part of the object.
var nonObjectMembers = []string{"before", "changed", "patch"}

// appendRow appends an object as a row, marked if it is not whole.
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
