package eventschema

import (
	"bytes"
	"encoding/json"
)

// node is a JSON object with ordered members, so that a schema has the same order as events.
type node []member

type member struct {
	name  string
	value any
}

// MarshalJSON encodes the members in order.
func (n node) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := encodeValue(&b, m.name); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := encodeValue(&b, m.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func encodeValue(b *bytes.Buffer, v any) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the newline that Encode adds
	return nil
}

func textNode(meaning string) node { return node{{"type", "string"}, {"description", meaning}} }

// nonEmptyText describes a string that is never empty.
func nonEmptyText(meaning string) node { return textNode(meaning).withMembers(member{"minLength", 1}) }

// withMembers returns a copy of n with additional members.
func (n node) withMembers(more ...member) node { return append(append(node(nil), n...), more...) }
