package eventschema

import (
	"slices"
	"strings"
)

// Member describes one member of an object, or one attribute of a CloudEvent.
type Member struct {
	Name    string
	Type    string // for display: "string", "object", "true", …
	Meaning string // Markdown, one line

	schema     node     // JSON Schema of the value
	mayBeEmpty bool     // a string that may be empty
	values     []string // known values; more may be added
	always     bool     // on every record
	onTypes    []string // the only types that have it; nil for all types
	requiredOn []string // types that always have it
}

// Groups of types of the native format.
var (
	objectTypes        = []string{"added", "updated", "deleted", "snapshot", "sync"}
	existingTypes      = []string{"added", "updated", "snapshot", "sync"}
	controlTypes       = []string{"snapshot.begin", "snapshot.end", "gap", "attribution.gap", "watermark", "partial.begin", "partial.end", "replay.end"}
	gapTypes           = []string{"gap", "attribution.gap"}
	watermarkTypes     = []string{"watermark"}
	attributedTypes    = []string{"attributed"}
	replayedTypes      = []string{"replayed"}
	replayTypes        = []string{"replayed", "replay.end"}
	namedTypes         = slices.Concat(objectTypes, attributedTypes, replayedTypes)
	snapshotFrameTypes = []string{"snapshot.begin", "snapshot.end", "partial.begin", "partial.end"}
	allTypes           = slices.Concat(namedTypes, controlTypes)
	deltas             = []string{"Added", "Updated", "Deleted", "Replaced", "Sync"}
	classes            = []string{"deleting", "spec", "status", "metadata"}
)

// orReplayed returns types, and that of replayed records, which have the members of the record that is emitted again.
func orReplayed(types []string) []string { return slices.Concat(types, replayedTypes) }

// Members returns the members of the native object in the order of encoding.
func Members() []Member { return nativeMembers }

var nativeMembers = []Member{
	{Name: "id", Type: "string", always: true, Meaning: "permanent identity: `cluster/uid/resourceVersion/type`, and where a version is emitted again `/` and the id of the snapshot, comparison, resync or list that does so. Drop duplicates by it"},
	{Name: "type", Type: "string", always: true, values: allTypes, Meaning: "see [Types](events.md#types)"},
	{Name: "cluster", Type: "string", always: true, Meaning: "`cluster.name`, else the UID of the namespace kube-system"},
	{Name: "group", Type: "string", always: true, mayBeEmpty: true, Meaning: "API group; the core group is `\"\"`"},
	{Name: "version", Type: "string", always: true, mayBeEmpty: true,
		Meaning: "API version; empty on a `deleted` of an object that was never read in one"},
	{Name: "resource", Type: "string", always: true, Meaning: "plural name: `deployments`"},
	{Name: "kind", Type: "string", always: true, mayBeEmpty: true, Meaning: "`Deployment`; empty if `version` is empty"},
	{Name: "namespace", Type: "string", Meaning: "absent for cluster-scoped objects, and on control records unless a resource is watched by namespace"},
	{Name: "name", Type: "string", onTypes: namedTypes, requiredOn: namedTypes, Meaning: "of the object; absent on control records"},
	{Name: "uid", Type: "string", onTypes: namedTypes, Meaning: "of the object"},
	{Name: "resourceVersion", Type: "string", requiredOn: append([]string{"gap", "watermark"}, namedTypes...),
		Meaning: "of the object; on control records a position: of a `gap` its end, of a `watermark` up to where the lane is complete"},
	{Name: "listVersion", Type: "string", onTypes: orReplayed(objectTypes),
		Meaning: "version of the list that showed this, if it was no watch. Absent in records of 0.9.0"},
	{Name: "generation", Type: "integer", onTypes: orReplayed(objectTypes), schema: node{{"minimum", 1}}, Meaning: "`metadata.generation`"},
	{Name: "observedAt", Type: "string", always: true, schema: node{{"format", "date-time"}}, Meaning: "when the exporter read it; RFC 3339, UTC"},
	{Name: "changedAt", Type: "object", onTypes: orReplayed(changeTypes), schema: changeTimeSchema,
		Meaning: "when the change was made: `notBefore` and `at`, see [Times](#times). Absent with `left`"},
	{Name: "delta", Type: "string", onTypes: orReplayed(objectTypes), requiredOn: objectTypes, values: deltas,
		Meaning: "of client-go's DeltaFIFO: `Added`, `Updated`, `Deleted`, `Replaced`, `Sync`"},
	{Name: "coalesced", Type: "true", onTypes: orReplayed(objectTypes), Meaning: "history of this object since its last change was lost"},
	{Name: "finalStateUnknown", Type: "true", onTypes: orReplayed([]string{"deleted"}),
		Meaning: "deleted while no watch was open: identity and `before` are the last known ones. Always `coalesced`"},
	{Name: "left", Type: "true", onTypes: orReplayed([]string{"deleted"}),
		Meaning: "the rules were edited and no longer select the object, which may still exist. Always `coalesced` and `finalStateUnknown`"},
	{Name: "redactionChanged", Type: "true", onTypes: orReplayed([]string{"updated", "deleted", "sync"}),
		Meaning: "emitted under [another redaction](shaping.md#when-redaction-changes) than before: a difference may be no change"},
	{Name: "actor", Type: "object", onTypes: orReplayed(existingTypes), schema: actorSchema,
		Meaning: "field manager of the write: `manager`, `operation`, `subresource`, `time`. It is self-declared and no evidence of a user. Absent if the writer is ambiguous: a write that only removed fields, repeated the manager's last one within a second, had no manager (deletion, binding, eviction) or is `coalesced`"},
	{Name: "class", Type: "string", onTypes: orReplayed([]string{"updated"}), values: classes,
		Meaning: "the part that changed, if the state before is known, the first of `deleting`, `spec` (all but metadata and status), `status`, `metadata`"},
	{Name: "snapshot", Type: "object", onTypes: slices.Concat(objectTypes, snapshotFrameTypes), requiredOn: append([]string{"snapshot"}, snapshotFrameTypes...), schema: snapshotSchema,
		Meaning: "`id` of the [snapshot](#snapshots); on `snapshot.end` and `partial.end` also `position`, `count` and `digest`"},
	{Name: "gap", Type: "object", onTypes: gapTypes, requiredOn: gapTypes, schema: gapSchema,
		Meaning: "`from`, `to` (positions; on an `attribution.gap` times) and `reason`"},
	{Name: "watermark", Type: "object", onTypes: watermarkTypes, requiredOn: watermarkTypes, schema: watermarkSchema,
		Meaning: "`epoch`, `sequence`, `lane`, `lanes`, and if known `algorithm`, `count` and `digest`, see [watermarks.md](watermarks.md)"},
	{Name: "replay", Type: "object", onTypes: replayTypes, requiredOn: replayTypes, schema: replaySchema,
		Meaning: "`id` of the [replay](#replays); on `replayed` also `of` and `type`, on `replay.end` `state`, `count` and `reason`"},
	{Name: "of", Type: "string", onTypes: orReplayed(attributedTypes), requiredOn: attributedTypes, Meaning: "`id` of the change that this record attributes"},
	{Name: "by", Type: "object", onTypes: orReplayed(changeTypes), schema: authorSchema,
		Meaning: "the authenticated user: `user`, `uid`, `groups`, `impersonator`, `impersonationConstraint`; `verb`, `subresource` and `received` of the request; in `claimed` what the client chose: `userAgent`, `sourceIPs`, `auditID`. A [stamp](audit-trail.md#stamps) has the user only. On a change only with [`awaitAuthor`](audit-trail.md#waiting-for-the-author), and then `unknown`, the reason, if no user is named"},
	{Name: "requestedBy", Type: "object", onTypes: orReplayed([]string{"deleted", "attributed"}), schema: identitySchema,
		Meaning: "on a `deleted`, the user that requested the deletion, if `by` only completed it"},
	{Name: "certainty", Type: "string", onTypes: orReplayed(changeTypes), requiredOn: attributedTypes, values: []string{"exact"},
		Meaning: "`exact`, see [audit-trail.md](audit-trail.md#what-exact-means)"},
	{Name: "deadLetter", Type: "object", schema: deadLetterSchema,
		Meaning: "in a dead-letter topic: the `sink` that could not deliver it, and the `reason`"},
	{Name: "omitted", Type: "array", onTypes: orReplayed(objectTypes), schema: namesSchema, Meaning: "members left out because the destination rejected the change as too large"},
	{Name: "changed", Type: "array", onTypes: orReplayed([]string{"updated"}), schema: changedSchema,
		Meaning: "if configured: where `after` differs from the state before, see [Changed values](#changed-values)"},
	{Name: "before", Type: "object", onTypes: orReplayed([]string{"deleted", "updated"}), schema: objectSchema,
		Meaning: "on `deleted` the final state, if it was seen; on `updated` the state before, if configured"},
	{Name: "after", Type: "object", onTypes: orReplayed(existingTypes), requiredOn: existingTypes, schema: objectSchema,
		Meaning: "the object as the API server sent it, without `metadata.managedFields`"},
}

var (
	changeTypes      = []string{"added", "updated", "deleted", "attributed"}
	changeTimeSchema = node{{"properties", node{
		{"at", textNode("RFC 3339, UTC").withMembers(member{"format", "date-time"})},
		{"notBefore", textNode("RFC 3339, UTC; absent if unknown").withMembers(member{"format", "date-time"})},
		{"source", textNode("what the time was learnt from").withMembers(member{"enum", []string{"audit", "managedFields", "deletion", "watch"}})},
	}}, {"required", []string{"at", "source"}}}
	actorSchema = node{{"properties", node{
		{"manager", textNode("name of the field manager, self-declared")}, {"operation", textNode("of the field manager").withMembers(member{"enum", []string{"Apply", "Update"}})},
		{"subresource", nonEmptyText("status, scale, …; absent for the object itself")}, {"time", textNode("RFC 3339").withMembers(member{"format", "date-time"})},
	}}, {"required", []string{"manager", "operation"}}}
	snapshotSchema = node{{"properties", node{
		{"id", nonEmptyText("unique among the snapshots of a resource")}, {"position", nonEmptyText("resourceVersion of the list")},
		{"count", node{{"type", "integer"}, {"minimum", 0}}},
		{"digest", node{{"type", "string"}, {"pattern", "^[0-9a-f]{64}$"}}},
	}}, {"required", []string{"id"}}, {"dependentRequired", node{
		{"position", []string{"count", "digest"}}, {"count", []string{"position", "digest"}}, {"digest", []string{"position", "count"}},
	}}}
	replaySchema = node{{"properties", node{
		{"id", nonEmptyText("of the signal that asked for the replay")}, {"of", nonEmptyText("id of the record that is emitted again")},
		{"type", nonEmptyText("its type")}, {"state", nonEmptyText("of the signal, as it ended")},
		{"count", node{{"type", "integer"}, {"minimum", 0}}}, {"reason", nonEmptyText("for display")},
	}}, {"required", []string{"id"}}, {"dependentRequired", node{
		{"of", []string{"type"}}, {"type", []string{"of"}}, {"state", []string{"count"}}, {"count", []string{"state"}}, {"reason", []string{"state"}},
	}}}
	gapSchema = node{{"properties", node{
		{"from", textNode("last complete position, or the time; empty if nothing was known before")},
		{"to", nonEmptyText("position from which the stream is complete again, or the time")}, {"reason", textNode("for display")},
	}}, {"required", []string{"from", "to", "reason"}}}
	watermarkSchema = node{{"properties", node{
		{"epoch", nonEmptyText("a period in which positions and sequences grow")}, {"sequence", node{{"type", "integer"}, {"minimum", 1}}},
		{"lane", node{{"type", "integer"}, {"minimum", 0}}}, {"lanes", node{{"type", "integer"}, {"minimum", 1}}},
		{"algorithm", nonEmptyText("of the digest, with its version")}, {"count", node{{"type", "integer"}, {"minimum", 0}}},
		{"digest", node{{"type", "string"}, {"pattern", "^[0-9a-f]{64}$"}}},
	}}, {"required", []string{"epoch", "sequence", "lane", "lanes"}}, {"dependentRequired", node{
		{"algorithm", []string{"count", "digest"}}, {"count", []string{"algorithm", "digest"}}, {"digest", []string{"algorithm", "count"}},
	}}}
	identityMembers = node{
		{"user", nonEmptyText("effective user of the request")}, {"uid", nonEmptyText("of the user")}, {"groups", namesSchema}, {"impersonator", nonEmptyText("authenticated user that acted as user")},
		{"impersonationConstraint", nonEmptyText("verb of the constrained impersonation that allowed it")},
		{"verb", nonEmptyText("of the request")}, {"subresource", nonEmptyText("status, scale, …; absent for the object itself")},
		{"received", textNode("clock of the API server; RFC 3339").withMembers(member{"format", "date-time"})},
		{"claimed", node{{"type", "object"}, {"properties", node{
			{"userAgent", nonEmptyText("self-declared by the client")}, {"sourceIPs", namesSchema}, {"auditID", nonEmptyText("not unique: chosen by the client")},
		}}}},
	}
	identityRequired = member{"required", []string{"user", "verb", "received", "claimed"}}
	identitySchema   = node{{"properties", identityMembers}, identityRequired}
	authorSchema     = node{
		{"properties", identityMembers.withMembers(member{"unknown", nonEmptyText("why no user is named")})},
		{"oneOf", []node{{identityRequired}, {{"required", []string{"unknown"}}}}},
	}
	deadLetterSchema = node{{"properties", node{
		{"sink", nonEmptyText("name of the sink")}, {"reason", textNode("for display")},
	}}, {"required", []string{"sink", "reason"}}}
	namesSchema   = node{{"items", node{{"type", "string"}, {"minLength", 1}}}, {"minItems", 1}, {"uniqueItems", true}}
	changedSchema = node{{"items", node{{"type", []string{"string", "object"}}, {"format", "json-pointer"}, {"properties", node{
		{"path", textNode("JSON Pointer").withMembers(member{"format", "json-pointer"})},
		{"from", node{{"description", "the value before; absent if there was none"}}}, {"to", node{{"description", "the value after; absent if there is none"}}},
		{"index", node{{"type", "integer"}, {"minimum", 0}, {"description", "place of an item with keys that was added or removed"}}},
		{"omitted", node{{"items", node{{"enum", []string{"from", "to"}}}}, {"minItems", 1}, {"description", "values that are left out because they are too long"}}},
	}}, {"required", []string{"path"}}, {"additionalProperties", false}}}, {"uniqueItems", true}}
	objectSchema = node{{"properties", node{
		{"apiVersion", textNode("group and version")}, {"kind", textNode("kind of the object")},
		{"metadata", node{{"type", "object"}, {"properties", node{
			{"name", node{{"type", "string"}}}, {"namespace", node{{"type", "string"}}},
			{"uid", node{{"type", "string"}}}, {"resourceVersion", node{{"type", "string"}}},
		}}}},
	}}}
	// rowSchema describes an object that marks its own omissions.
	rowSchema = node{{"properties", append(slices.Clone(objectSchema[0].value.(node)), member{"kubecdcOmitted", node{
		{"type", "array"}, {"items", node{{"type", "string"}}}, {"minItems", 1},
		{"description", "members omitted because the destination rejected the object as too large; absent if it is complete"},
	}})}}
)

// valueSchema returns the schema of the member's value.
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

// hasClosedMembers reports whether this project defines the members of the value.
func (m Member) hasClosedMembers() bool {
	return m.Name == "actor" || m.Name == "snapshot" || m.Name == "gap" || m.Name == "watermark" || m.Name == "deadLetter" || m.Name == "by" || m.Name == "requestedBy"
}
