package eventschema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// Names returns the formats that have a schema, by their configuration names. "json" also describes the value of a
// CloudEvent in binary mode, which is the native object.
func Names() []string { return []string{"json", "cloudevents-structured", "debezium", "upsert"} }

const (
	draft = "https://json-schema.org/draft/2020-12/schema"
	base  = "https://raw.githubusercontent.com/kubecdc/kubecdc/main/docs/schema/"
)

// ID returns the $id of a published schema.
func ID(name string) string { return base + name + ".schema.json" }

// PublishedSchema returns a schema as stored in docs/schema, with a final newline.
func PublishedSchema(name string) ([]byte, error) { return buildDocument(name, false) }

// StrictSchema returns a schema that rejects members and values that are not described.
func StrictSchema(name string) ([]byte, error) { return buildDocument(name, true) }

func buildDocument(name string, strict bool) ([]byte, error) {
	var body node
	switch name {
	case "json":
		body = changeSchema(strict)
	case "cloudevents-structured":
		body = cloudEventSchema(strict)
	case "debezium":
		body = envelopeSchema(strict)
	case "upsert":
		body = node{{"title", "A Kubernetes object, as kubecdc's format upsert writes it"}, {"type", "object"}}.withMembers(rowSchema...)
	default:
		return nil, fmt.Errorf("%q has no schema; expected one of %v", name, Names())
	}
	plain, err := json.Marshal(node{{"$schema", draft}, {"$id", ID(name)}}.withMembers(body...))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, plain, "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// changeSchema returns the schema of the native object.
func changeSchema(strict bool) node {
	properties := node{}
	required := []string{}
	for _, m := range nativeMembers {
		properties = append(properties, member{m.Name, m.valueSchema(strict)})
		if m.always {
			required = append(required, m.Name)
		}
	}
	n := node{
		{"title", "A change of a Kubernetes object, or a control record, in kubecdc's native form"}, {"type", "object"},
		{"properties", properties}, {"required", required}, {"dependentRequired", requiredTogether}, {"allOf", rulesByType()},
	}
	if strict {
		n = n.withMembers(member{"additionalProperties", false})
	}
	return n
}

// requiredTogether lists members that require other members.
var requiredTogether = node{
	{"finalStateUnknown", []string{"coalesced"}}, {"left", []string{"coalesced", "finalStateUnknown"}},
}

// rulesByType returns, for each type, the members that it requires and those that it must not have.
func rulesByType() []node {
	var rules []node
	for _, t := range allTypes {
		never, required := node{}, []string{}
		for _, m := range nativeMembers {
			if m.onTypes != nil && !slices.Contains(m.onTypes, t) {
				never = append(never, member{m.Name, false})
			}
			if slices.Contains(m.requiredOn, t) {
				required = append(required, m.Name)
			}
		}
		then := node{{"properties", never}, {"required", required}}
		if t == "snapshot.end" || t == "partial.end" {
			then = then.withMembers(member{"allOf", []node{{{"properties", node{{"snapshot", node{{"required", []string{"position", "count", "digest"}}}}}}}}})
		}
		rules = append(rules, node{{"if", node{{"properties", node{{"type", node{{"const", t}}}}}}}, {"then", then}})
	}
	return rules
}

// attributes are the CloudEvents attributes, without the data.
var attributes = []Member{
	{Name: "specversion", Type: "string", always: true, schema: node{{"const", "1.0"}}},
	{Name: "id", Type: "string", always: true}, {Name: "source", Type: "string", always: true, schema: node{{"format", "uri-reference"}}},
	{Name: "type", Type: "string", always: true, schema: node{{"pattern", `^io\.kubecdc\.resource\.`}}},
	{Name: "subject", Type: "string"}, {Name: "time", Type: "string", always: true, schema: node{{"format", "date-time"}}},
	{Name: "cluster", Type: "string", always: true}, {Name: "group", Type: "string", always: true},
	{Name: "resource", Type: "string", always: true}, {Name: "kind", Type: "string"},
	{Name: "uid", Type: "string"}, {Name: "resourceversion", Type: "string"},
	{Name: "sequence", Type: "string", schema: node{{"pattern", "^[0-9]{20}$"}}}, {Name: "partitionkey", Type: "string", always: true},
	{Name: "delta", Type: "string", values: deltas}, {Name: "class", Type: "string", values: classes}, {Name: "snapshotid", Type: "string"},
	{Name: "coalesced", Type: "true"}, {Name: "finalstateunknown", Type: "true"}, {Name: "left", Type: "true"},
	{Name: "datacontenttype", Type: "string", always: true, schema: node{{"const", "application/json"}}},
}

func cloudEventSchema(strict bool) node {
	properties, required := node{}, []string{}
	for _, a := range attributes {
		properties = append(properties, member{a.Name, a.valueSchema(strict)})
		if a.always {
			required = append(required, a.Name)
		}
	}
	properties = append(properties, member{"data", node{{"$ref", "#/$defs/change"}}})
	n := node{
		{"title", "A CloudEvent 1.0 in structured mode, as kubecdc writes it"}, {"type", "object"},
		{"properties", properties}, {"required", append(required, "data")}, {"$defs", node{{"change", changeSchema(strict)}}},
	}
	if strict {
		n = n.withMembers(member{"additionalProperties", false})
	}
	return n
}

// sourceOnly are the members of an envelope's source that the native object lacks or has under another name.
var sourceOnly = []Member{
	{Name: "version", Type: "string", always: true, Meaning: "of this envelope"},
	{Name: "connector", Type: "string", always: true, schema: node{{"const", "kubecdc"}}, Meaning: "constant"},
	{Name: "name", Type: "string", always: true, Meaning: "cluster"},
	{Name: "ts_ms", Type: "integer", always: true, schema: node{{"minimum", 0}}, Meaning: "when the API server made the change, if the object records it, otherwise when it was observed; milliseconds since 1970"},
	{Name: "snapshot", Type: "string", always: true, schema: node{{"enum", []string{"true", "false"}}}, Meaning: "whether this is read from a snapshot"},
	{Name: "db", Type: "string", always: true, Meaning: "cluster"},
	{Name: "schema", Type: "string", always: true, mayBeEmpty: true, Meaning: "namespace, empty for cluster-scoped objects"},
	{Name: "table", Type: "string", always: true, Meaning: "resource as kubectl writes it"},
	{Name: "apiVersion", Type: "string", always: true, mayBeEmpty: true, Meaning: "group and version"},
	{Name: "objectName", Type: "string", always: true, Meaning: "name of the object"},
	{Name: "snapshotId", Type: "string", Meaning: "id of the snapshot"},
	{Name: "before", Type: "string", schema: node{{"enum", []string{"unknown", "identity"}}}, Meaning: "missing data in before"},
}

// sourceMembers returns all members of an envelope's source.
func sourceMembers() []Member {
	all := slices.Clone(sourceOnly)
	taken := []string{"version", "name", "snapshot", "before", "after", "cluster", "gap", "of", "by", "requestedBy", "certainty"}
	for _, m := range nativeMembers {
		if !slices.Contains(taken, m.Name) {
			all = append(all, m)
		}
	}
	return all
}

// envelopeSchema returns the schema of Debezium's envelope.
func envelopeSchema(strict bool) node {
	properties, required := node{}, []string{}
	for _, m := range sourceMembers() {
		properties = append(properties, member{m.Name, m.valueSchema(strict)})
		if m.always {
			required = append(required, m.Name)
		}
	}
	source := node{{"type", "object"}, {"properties", properties}, {"required", required}}
	if strict {
		source = source.withMembers(member{"additionalProperties", false})
	}
	orNull := node{{"type", []string{"object", "null"}}}.withMembers(rowSchema...)
	n := node{
		{"title", "A change of a Kubernetes object in Debezium's envelope, as kubecdc writes it"}, {"type", "object"},
		{"properties", node{
			{"before", orNull}, {"after", orNull}, {"source", source}, {"op", node{{"enum", []string{"c", "u", "d", "r"}}}},
			{"ts_ms", node{{"type", "integer"}, {"minimum", 0}, {"description", "when the exporter read it; milliseconds since 1970"}}},
			{"transaction", node{{"type", "null"}}},
		}},
		{"required", []string{"before", "after", "source", "op", "ts_ms", "transaction"}},
		{"allOf", []node{
			rowNullability([]string{"c", "r"}, "null", "object"), rowNullability([]string{"u"}, "object", "object"), rowNullability([]string{"d"}, "object", "null"),
		}},
	}
	if strict {
		n = n.withMembers(member{"additionalProperties", false})
	}
	return n
}

// rowNullability returns the types of before and after for these values of op.
func rowNullability(ops []string, before, after string) node {
	return node{
		{"if", node{{"properties", node{{"op", node{{"enum", ops}}}}}}},
		{"then", node{{"properties", node{{"before", node{{"type", before}}}, {"after", node{{"type", after}}}}}}},
	}
}
