package eventschema

import (
	"slices"
	"strings"
)

// Member describes one member of an object, or one attribute of a CloudEvent.
type Member struct {
	Name    string
	Type    string // for people: "string", "object", "true", …
	Meaning string // Markdown, one line

	schema     node     // what its value looks like
	mayBeEmpty bool     // a string that may be empty
	values     []string // its values; more may come
	always     bool     // on every record
	onTypes    []string // the only types that have it; nil: all may
	requiredOn []string // types that always have it
}

// The types of the native format, by what they speak of.
var (
	objectTypes        = []string{"added", "updated", "deleted", "snapshot", "sync"}
	existingTypes      = []string{"added", "updated", "snapshot", "sync"}
	controlTypes       = []string{"snapshot.begin", "snapshot.end", "gap", "attribution.gap"}
	gapTypes           = []string{"gap", "attribution.gap"}
	attributedTypes    = []string{"attributed"}
	namedTypes         = slices.Concat(objectTypes, attributedTypes)
	snapshotFrameTypes = []string{"snapshot.begin", "snapshot.end"}
	allTypes           = slices.Concat(objectTypes, attributedTypes, controlTypes)
	deltas             = []string{"Added", "Updated", "Deleted", "Replaced", "Sync"}
	classes            = []string{"deleting", "spec", "status", "metadata"}
)

// Members returns the members of the native object in the order in which they are written.
func Members() []Member { return nativeMembers }

var nativeMembers = []Member{
	{Name: "id", Type: "string", always: true, Meaning: "identity of the change, for ever: `cluster/uid/resourceVersion/type`, on " +
		"`snapshot` also `/` and the id of the snapshot, on what a comparison with edited rules or a resync emits `/` and its own, and with `finalStateUnknown` " +
		"`/` and what found it out. " +
		"No two changes share it: drop duplicates by it"},
	{Name: "type", Type: "string", always: true, values: allTypes, Meaning: "see [Types](#types)"},
	{Name: "cluster", Type: "string", always: true, Meaning: "`cluster.name`, else the UID of the kube-system namespace"},
	{Name: "group", Type: "string", always: true, mayBeEmpty: true, Meaning: "API group of the resource; the core group is `\"\"`"},
	{Name: "version", Type: "string", always: true, mayBeEmpty: true,
		Meaning: "API version of the resource; empty on a `deleted` of what a journal knows that did not keep versions yet"},
	{Name: "resource", Type: "string", always: true, Meaning: "name of the resource, in the plural: `deployments`"},
	{Name: "kind", Type: "string", always: true, mayBeEmpty: true, Meaning: "kind of its objects: `Deployment`; empty where `version` is"},
	{Name: "namespace", Type: "string", Meaning: "absent for cluster-scoped objects; on control records only where a resource is watched by namespace"},
	{Name: "name", Type: "string", onTypes: namedTypes, requiredOn: namedTypes, Meaning: "of the object; absent on control records"},
	{Name: "uid", Type: "string", onTypes: namedTypes, Meaning: "of the object; absent on control records"},
	{Name: "resourceVersion", Type: "string", requiredOn: append([]string{"gap"}, namedTypes...),
		Meaning: "of the object. On a `gap` the position where it ends, on the other control records a position, if any"},
	{Name: "generation", Type: "integer", onTypes: objectTypes, schema: node{{"minimum", 1}}, Meaning: "`metadata.generation`, where the object has one"},
	{Name: "observedAt", Type: "string", always: true, schema: node{{"format", "date-time"}}, Meaning: "when the exporter read it; RFC 3339, UTC"},
	{Name: "delta", Type: "string", onTypes: objectTypes, requiredOn: objectTypes, values: deltas,
		Meaning: "what client-go's DeltaFIFO called it: `Added`, `Updated`, `Deleted`, `Replaced`, `Sync`"},
	{Name: "coalesced", Type: "true", onTypes: objectTypes, Meaning: "history of this object between its last change and this one was lost"},
	{Name: "finalStateUnknown", Type: "true", onTypes: []string{"deleted"},
		Meaning: "it went while nobody watched: the identity is the last known one, and so is `before`, where there is one. Always `coalesced`"},
	{Name: "left", Type: "true", onTypes: []string{"deleted"},
		Meaning: "the rules were edited and do not select the object any more: it left the stream, and may still exist in the cluster. Always `coalesced` and `finalStateUnknown`"},
	{Name: "redactionChanged", Type: "true", onTypes: []string{"updated", "deleted", "sync"},
		Meaning: "the object was last emitted under another redaction: what differs between that and this may be no change, see [shaping.md](shaping.md#when-redaction-changes)"},
	{Name: "actor", Type: "object", onTypes: existingTypes, schema: actorSchema,
		Meaning: "self-declared, and no evidence of a user: what the writer wrote of itself into `metadata.managedFields`, which whoever may " +
			"write the object can forge. `manager`, `operation`, `subresource`, `time`, as they stand there. On `updated` " +
			"it is the one entry that the write made, renewed or gave fields to; on `added` the only entry, where no label or field selector " +
			"can have let an older object in. Absent where that does not " +
			"tell for certain: the write only removed fields, repeated the manager's last one within the same second, went past field " +
			"managers (deletion, binding, eviction) or is `coalesced`. `time` has one-second resolution, and writes through `scale` have none"},
	{Name: "class", Type: "string", onTypes: []string{"updated"}, values: classes,
		Meaning: "which part changed, where what was there before is known: `deleting` (it now waits for its finalizers), `spec` " +
			"(anything but metadata and status), `status`, `metadata`; the first that applies"},
	{Name: "snapshot", Type: "object", onTypes: slices.Concat(objectTypes, snapshotFrameTypes), requiredOn: append([]string{"snapshot"}, snapshotFrameTypes...), schema: snapshotSchema,
		Meaning: "which snapshot this belongs to: `id`; on changes too, where the snapshot was interrupted. On `snapshot.end` also `position` (resourceVersion of the list), `count` " +
			"(objects that existed then) and `digest` over them"},
	{Name: "gap", Type: "object", onTypes: gapTypes, requiredOn: gapTypes, schema: gapSchema,
		Meaning: "`from`, `to` (positions; on an `attribution.gap` times) and `reason`"},
	{Name: "of", Type: "string", onTypes: attributedTypes, requiredOn: attributedTypes, Meaning: "`id` of the change that this record names the author of"},
	{Name: "by", Type: "object", onTypes: attributedTypes, schema: identitySchema,
		Meaning: "who made the change, as the API server authenticated them: `user`, `uid`, `groups`, and `impersonator` where another user acted as " +
			"`user`; the `verb` and `subresource` of the request and when it was `received`. What the client chose itself, and is no " +
			"evidence, is in `claimed`: `userAgent`, `sourceIPs`, `auditID`"},
	{Name: "likely", Type: "object", onTypes: attributedTypes, schema: identitySchema,
		Meaning: "in the place of `by` where `certainty` is `likely`: a guess, made only where `audit.likely` asks for it"},
	{Name: "requestedBy", Type: "object", onTypes: attributedTypes, schema: identitySchema,
		Meaning: "on a `deleted`, where it is known: who had asked for it, if that was another than `by`, who only ended it"},
	{Name: "certainty", Type: "string", onTypes: attributedTypes, requiredOn: attributedTypes, values: []string{"exact", "likely"},
		Meaning: "`exact`, see [audit-trail.md](audit-trail.md#what-exact-means), or [`likely`](audit-trail.md#guesses)"},
	{Name: "deadLetter", Type: "object", schema: deadLetterSchema,
		Meaning: "only in a topic of dead letters: the `sink` that could not deliver the change, and its `reason`"},
	{Name: "omitted", Type: "array", onTypes: objectTypes, schema: namesSchema, Meaning: "members left out so that the destination takes the change: `before`, `status`, …"},
	{Name: "changed", Type: "array", onTypes: []string{"updated"}, schema: pathsSchema,
		Meaning: "where asked: JSON Pointers ([RFC 6901](https://www.rfc-editor.org/rfc/rfc6901)) of what differs, sorted"},
	{Name: "patch", Type: "object or array", onTypes: []string{"updated"}, schema: node{{"type", []string{"object", "array"}}},
		Meaning: "where asked: makes `after` of what was before. An object is a merge patch " +
			"([RFC 7396](https://www.rfc-editor.org/rfc/rfc7396)), an array a JSON Patch ([RFC 6902](https://www.rfc-editor.org/rfc/rfc6902))"},
	{Name: "before", Type: "object", onTypes: []string{"deleted", "updated"}, schema: objectSchema,
		Meaning: "on `deleted`: the final state, as the API server sent it, absent when it was not seen. On `updated`: the state before, where asked"},
	{Name: "after", Type: "object", onTypes: existingTypes, requiredOn: existingTypes, schema: objectSchema,
		Meaning: "the object as the API server sent it, without `metadata.managedFields`"},
}

var (
	actorSchema = node{{"properties", node{
		{"manager", textNode("field manager, as it calls itself")}, {"operation", textNode("of the field manager").withMembers(member{"enum", []string{"Apply", "Update"}})},
		{"subresource", nonEmptyText("status, scale, …; absent for the object itself")}, {"time", textNode("RFC 3339").withMembers(member{"format", "date-time"})},
	}}, {"required", []string{"manager", "operation"}}}
	snapshotSchema = node{{"properties", node{
		{"id", nonEmptyText("unique among the snapshots of a resource")}, {"position", nonEmptyText("resourceVersion of the list")},
		{"count", node{{"type", "integer"}, {"minimum", 0}}},
		{"digest", node{{"type", "string"}, {"pattern", "^[0-9a-f]{64}$"}}},
	}}, {"required", []string{"id"}}, {"dependentRequired", node{
		{"position", []string{"count", "digest"}}, {"count", []string{"position", "digest"}}, {"digest", []string{"position", "count"}},
	}}}
	gapSchema = node{{"properties", node{
		{"from", textNode("last position that was complete, or the time; empty when nothing was known before")},
		{"to", nonEmptyText("position at which the stream is complete again, or the time")}, {"reason", textNode("for people")},
	}}, {"required", []string{"from", "to", "reason"}}}
	identitySchema = node{{"properties", node{
		{"user", nonEmptyText("that the request acted under")}, {"uid", nonEmptyText("of the user")}, {"groups", namesSchema}, {"impersonator", nonEmptyText("user who acted as another")},
		{"verb", nonEmptyText("of the request")}, {"subresource", nonEmptyText("status, scale, …; absent for the object itself")},
		{"received", textNode("by the API server's clock; RFC 3339").withMembers(member{"format", "date-time"})},
		{"claimed", node{{"type", "object"}, {"properties", node{
			{"userAgent", nonEmptyText("as the client calls itself")}, {"sourceIPs", namesSchema}, {"auditID", nonEmptyText("may be shared by requests")},
		}}}},
	}}, {"required", []string{"user", "verb", "received", "claimed"}}}
	deadLetterSchema = node{{"properties", node{
		{"sink", nonEmptyText("name of the sink")}, {"reason", textNode("for people")},
	}}, {"required", []string{"sink", "reason"}}}
	namesSchema  = node{{"items", node{{"type", "string"}, {"minLength", 1}}}, {"minItems", 1}, {"uniqueItems", true}}
	pathsSchema  = node{{"items", node{{"type", "string"}, {"format", "json-pointer"}}}, {"minItems", 1}, {"uniqueItems", true}}
	objectSchema = node{{"properties", node{
		{"apiVersion", textNode("group and version")}, {"kind", textNode("kind of the object")},
		{"metadata", node{{"type", "object"}, {"properties", node{
			{"name", node{{"type", "string"}}}, {"namespace", node{{"type", "string"}}},
			{"uid", node{{"type", "string"}}}, {"resourceVersion", node{{"type", "string"}}},
		}}}},
	}}}
	// rowSchema is an object where nothing beside it says that it is not whole.
	rowSchema = node{{"properties", append(slices.Clone(objectSchema[0].value.(node)), member{"kubecdcOmitted", node{
		{"type", "array"}, {"items", node{{"type", "string"}}}, {"minItems", 1},
		{"description", "what was left out of the object so that the destination takes it; absent where it is whole"},
	}})}}
)

// valueSchema returns the schema of m's value.
func (m Member) valueSchema(strict bool) node {
	var n node
	if m.Meaning != "" {
		n = node{{"description", m.Meaning}}
	}
	switch {
	case m.Type == "true":
		return n.withMembers(member{"const", true})
	case strings.Contains(m.Type, " "):
	case m.Type == "string" && !m.mayBeEmpty && m.schema == nil:
		n = n.withMembers(member{"type", m.Type}, member{"minLength", 1})
	default:
		n = n.withMembers(member{"type", m.Type})
	}
	n = n.withMembers(m.schema...)
	switch {
	case m.values != nil && strict:
		n = n.withMembers(member{"enum", m.values})
	case m.values != nil:
		n = n.withMembers(member{"examples", m.values})
	}
	if strict && m.hasClosedMembers() {
		n = n.withMembers(member{"additionalProperties", false})
	}
	return n
}

// hasClosedMembers says whether the members of m's value are ours to name.
func (m Member) hasClosedMembers() bool {
	return m.Name == "actor" || m.Name == "snapshot" || m.Name == "gap" || m.Name == "deadLetter" || m.Name == "by" || m.Name == "requestedBy"
}
