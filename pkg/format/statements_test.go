package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/tools/eventschema"
)

// sectionChecks check the statements of both pages on events about the encoding, section by section. Statements about when a
// record is emitted are checked by other tests, see sectionTests.
var sectionChecks = map[string]func(t *testing.T, c *event.Change){
	"The native object":      checkNativeObject,
	"Types":                  checkTypes,
	"CloudEvents":            checkCloudEvents,
	"Debezium":               checkDebezium,
	"Upsert":                 checkUpsert,
	"Facts beside the value": checkFactsHeader,
	"Destinations":           checkKeys,
}

// sectionTests names the tests of sections that concern more than one change: file and function.
var sectionTests = map[string][]string{
	"Snapshots": {
		"pkg/deltas/property_test.go TestEveryRevisionIsEmittedOnceThroughCrashes", "pkg/consumer/stream_test.go TestRulesRebuildTheStateOfTheCluster",
		"pkg/event/change_test.go TestReemittedVersionsHaveAnotherID", "pkg/event/change_test.go TestChangesWithinASnapshotKeepTheirID",
		"pkg/event/change_test.go TestDigestsDistinguishSetsInAnyOrder",
	},
	"Replays": {
		"internal/journal/replay_test.go TestAReplayEmitsTheJournalAgainOnce", "test/e2e/signal_replay_test.go TestAReplayHasWhatTheJournalKeeps",
		"test/e2e/signal_replay_test.go TestAReplayIsAbortedByAFailover", "internal/app/replays_test.go TestAReplayThatTheJournalLostIsAborted",
		"internal/app/replays_test.go TestAReplayIsRefusedWithItsRemedy", "pkg/consumer/clients_test.go TestClientsFollowTheRules",
	},
	"Changed values": {
		"pkg/shape/diff/list_test.go TestEveryDifferenceIsNamedOnceWithItsValues", "pkg/shape/diff/list_test.go TestAListOfValuesIsBounded",
		"pkg/shape/diff/list_test.go TestEveryListMakesAfterOfBefore", "pkg/shape/diff/list_test.go TestWhatPeopleWriteComesFirst",
	},
	"Objects of Events": {
		"pkg/source/involved/server_test.go TestEventsHaveWhatTheirPodsHadThen", "pkg/source/involved/server_test.go TestMissingRightIsAReason",
		"pkg/source/involved/objects_test.go TestAnotherStoreProvesNothingByVersions",
		"test/e2e/source/involved_test.go TestEventsHaveWhatTheirObjectMayShow",
	},
	"Times": {
		"pkg/deltas/clock_test.go TestLeasesTellWhenADeleteWasMade", "pkg/deltas/clock_test.go TestAForgedTimeNarrowsNothing",
		"pkg/deltas/clock_test.go TestADeleteThatOnlyAListShowsHasAWindow",
		"pkg/source/clock_test.go TestAChangeThatIsReadLateHasTheTimeItWasMade",
	},
	"Compatibility": {"tools/eventschema/schema_test.go TestAStrictSchemaCanFail", "tools/eventschema/schema_test.go TestPublishedSchemasAreUpToDate"},
	"An event":      {"pkg/format/samples_test.go TestEveryFormatIsTheDocumentedForm"},
	"Formats":       {"pkg/format/samples_test.go TestEveryFormatIsTheDocumentedForm"},
	"The rules": {
		"pkg/consumer/rules_test.go TestPageAndCodeHaveTheSameRules", "pkg/consumer/stream_test.go TestRulesRebuildTheStateOfTheCluster",
		"pkg/consumer/stream_test.go TestRulesHoldForAnyPartitionOrder", "test/sinktest/suite.go testObjectsShareALane",
	},
	"Verifying the state": {"pkg/consumer/table_test.go TestSnapshotIsVerifiedForAnyPartitionOrder", "pkg/consumer/table_test.go TestASnapshotThatLacksAnObjectIsNotVerified"},
	"By format":           {"test/pages/hostile_test.go TestTheFlinkRecipeTakesHostileRecords", "test/e2e/formats_test.go TestCompactedTopicEqualsTheCluster"},
	"Clients":             {"pkg/consumer/clients_test.go TestClientsFollowTheRules"},
	"Example":             {"pkg/consumer/example_test.go Example"},
}

// TestEveryStatementOfTheEventsPageHolds checks each section of both pages against every kind of change.
func TestEveryStatementOfTheEventsPageHolds(t *testing.T) {
	for section, check := range sectionChecks {
		t.Run(section, func(t *testing.T) {
			for _, s := range append(sampleChanges(), variantChanges()...) {
				check(t, &s.change)
			}
		})
	}
}

// TestEverySectionIsChecked fails when a section is added to a page without a test.
func TestEverySectionIsChecked(t *testing.T) {
	for _, page := range []string{"events.md", "events-reference.md", "consuming.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(text), -1) {
			if sectionChecks[m[1]] == nil && len(sectionTests[m[1]]) == 0 {
				t.Errorf("docs/%s: no test is listed for section %q", page, m[1])
			}
		}
	}
	for section, tests := range sectionTests {
		for _, test := range tests {
			file, name, _ := strings.Cut(test, " ")
			if text, err := os.ReadFile("../../" + file); err != nil || !bytes.Contains(text, []byte("func "+name)) {
				t.Errorf("%s: %s not found in %s (%v)", section, name, file, err)
			}
		}
	}
}

// variantChanges returns further changes, each with one special property.
func variantChanges() []namedChange {
	var all []namedChange
	for _, s := range sampleChanges() {
		within, letter, core, reduced := s, s, s, s
		if !s.change.Type.IsControl() {
			within.name, within.change.Snapshot = s.name+" within a snapshot", &event.SnapshotInfo{ID: "s9"}
			reduced.name, reduced.change.Omitted = s.name+" reduced", []string{"status"}
			all = append(all, within, reduced)
		}
		letter.name, letter.change.DeadLetter = s.name+" refused", &event.DeadLetterInfo{Sink: "main", Reason: "too large"}
		core.name, core.change.Resource = s.name+" of the core group", event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
		core.change.ResourceVersion = strings.Repeat("9", min(len(s.change.ResourceVersion), 1)) + s.change.ResourceVersion
		all = append(all, letter, core)
	}
	return all
}

// readObject decodes a JSON object and returns its member names in order.
func readObject(t *testing.T, text []byte) (map[string]any, []string) {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var order []string
	decoder := json.NewDecoder(bytes.NewReader(text))
	if _, err := decoder.Token(); err != nil {
		t.Fatal(err)
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			t.Fatal(err)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			t.Fatal(err)
		}
		order = append(order, name.(string))
	}
	return all, order
}

// checkNativeObject: "Members appear in this order; members without a value are omitted", and the properties of members in
// the table.
func checkNativeObject(t *testing.T, c *event.Change) {
	object, order := readObject(t, JSON.AppendValue(nil, c))
	var table []string
	for _, m := range eventschema.Members() {
		if _, given := object[m.Name]; given {
			table = append(table, m.Name)
		}
	}
	if !slices.Equal(order, table) {
		t.Errorf("%s: members in the order %v, the table has %v", c.ID(), order, table)
	}
	for name, value := range object {
		if value == nil || value == "" && name != "group" || value == false {
			t.Errorf("%s: %s is %v and not omitted", c.ID(), name, value)
		}
	}
	if at, err := time.Parse(time.RFC3339Nano, object["observedAt"].(string)); err != nil || at.Location() != time.UTC {
		t.Errorf("observedAt is %v", object["observedAt"])
	}
	if _, whole := object["gap"]; whole != (c.Type == event.Gap || c.Type == event.AttributionGap) {
		t.Errorf("%s: gap %v", c.Type, object["gap"])
	}
}

// checkTypes: control records "concern a resource, not an object. Their key is that of the resource".
func checkTypes(t *testing.T, c *event.Change) {
	object, _ := readObject(t, JSON.AppendValue(nil, c))
	_, named := object["name"]
	_, shown := object["after"]
	control := slices.Contains([]event.Type{event.Gap, event.SnapshotBegin, event.SnapshotEnd, event.PartialBegin, event.PartialEnd, event.AttributionGap, event.Watermark, event.ReplayEnd}, c.Type)
	if named == control || c.Type.IsControl() != control || isControlKey(c.Key()) != control {
		t.Errorf("%s: name %v, key %s", c.Type, object["name"], c.Key())
	}
	if shown != (!control && c.Type != event.Deleted && c.Type != event.Attributed) {
		t.Errorf("%s: after %v", c.Type, object["after"])
	}
}

// isControlKey: the key of a control record is that of its resource without a name; that of some types has a suffix.
func isControlKey(key string) bool {
	return strings.HasSuffix(strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(key, "/watermark"), "/partial"), "/replay"), "/")
}

// checkCloudEvents: the table of attributes, and that the data is the native object and never absent.
func checkCloudEvents(t *testing.T, c *event.Change) {
	native := JSON.AppendValue(nil, c)
	if !bytes.Equal(CloudEvents.AppendValue(nil, c), native) {
		t.Errorf("%s: the data in binary mode is not the native object", c.ID())
	}
	object, _ := readObject(t, native)
	whole, order := readObject(t, CloudEventsStructured.AppendValue(nil, c))
	if data, err := json.Marshal(whole["data"]); err != nil || len(data) < len(`{"id":""}`) {
		t.Errorf("%s: data %s (%v)", c.ID(), data, err)
	}
	text := func(name string) string {
		s, _ := object[name].(string)
		return s
	}
	group := text("group")
	if group == "" {
		group = "core"
	}
	subject := strings.TrimPrefix(text("namespace")+"/"+text("name"), "/")
	if c.Type.IsControl() {
		subject = ""
	}
	sequence := ""
	if rv := text("resourceVersion"); rv != "" {
		sequence = fmt.Sprintf("%020s", rv)
	}
	snapshot := ""
	if c.Snapshot != nil {
		snapshot = c.Snapshot.ID
	}
	for name, want := range map[string]string{
		"specversion": "1.0", "id": text("id"), "type": "io.kubecdc.resource." + text("type"), "subject": subject, "time": text("observedAt"),
		"source":          "/clusters/prod/" + group + "/v1/" + text("resource"),
		"datacontenttype": "application/json", "cluster": text("cluster"), "resource": text("resource"), "kind": text("kind"), "uid": text("uid"),
		"resourceversion": text("resourceVersion"), "delta": text("delta"), "group": group, "sequence": sequence, "partitionkey": c.Key(),
		"class": text("class"), "snapshotid": snapshot,
	} {
		if got, _ := whole[name].(string); got != want {
			t.Errorf("%s: attribute %s is %q, want %q", c.ID(), name, got, want)
		}
	}
	for attribute, member := range map[string]string{"coalesced": "coalesced", "finalstateunknown": "finalStateUnknown", "left": "left"} {
		if whole[attribute] != object[member] {
			t.Errorf("%s: attribute %s is %v, the member is %v", c.ID(), attribute, whole[attribute], object[member])
		}
	}
	page := readSection(t, "CloudEvents")
	for _, name := range order {
		if name != "data" && name != "specversion" && !strings.Contains(page, "`"+name+"`") {
			t.Errorf("the table has no attribute %s", name)
		}
	}
}

// readSection returns one section of docs/events-reference.md.
func readSection(t *testing.T, section string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/events-reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	if !found {
		t.Fatalf("no section %q", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// checkDebezium: the table of op, the members that are never null, the contents of source, and that control records have no
// value.
func checkDebezium(t *testing.T, c *event.Change) {
	value := Debezium.AppendValue(nil, c)
	if c.Type.IsControl() || !Debezium.CanRepresent(c) {
		if len(value) > 0 {
			t.Errorf("%s has the value %s", c.Type, value)
		}
		return
	}
	envelope, _ := readObject(t, value)
	op := map[event.Type]string{event.Added: "c", event.Updated: "u", event.Deleted: "d", event.Snapshot: "r", event.Sync: "r"}[c.Type]
	if c.Type == event.Updated && c.Before == nil {
		op = "r"
	}
	if envelope["op"] != op || (envelope["before"] != nil) != (op == "u" || op == "d") || (envelope["after"] != nil) != (op != "d") {
		t.Errorf("%s: op %v, want %s; before %v, after %v", c.ID(), envelope["op"], op, envelope["before"], envelope["after"])
	}
	source := envelope["source"].(map[string]any)
	missing := map[string]any{"r": "unknown", "d": "identity"}[op]
	if c.Before != nil || c.Type == event.Snapshot || c.Type == event.Sync {
		missing = nil
	}
	for name, want := range map[string]any{
		"connector": "kubecdc", "name": c.Cluster, "db": c.Cluster, "schema": c.Namespace, "table": c.Resource.String(), "id": c.ID(),
		"snapshot": fmt.Sprint(c.Type == event.Snapshot), "type": string(c.Type), "objectName": c.Name, "before": missing,
	} {
		if source[name] != want {
			t.Errorf("%s: source.%s is %v, want %v", c.ID(), name, source[name], want)
		}
	}
	written := c.ObservedAt.UnixMilli()
	if !c.ChangedAt.At.IsZero() {
		written = c.ChangedAt.At.UnixMilli()
	}
	if source["ts_ms"] != float64(written) || envelope["ts_ms"] != float64(c.ObservedAt.UnixMilli()) {
		t.Errorf("%s: ts_ms %v and %v", c.ID(), source["ts_ms"], envelope["ts_ms"])
	}
	if transaction, given := envelope["transaction"]; !given || transaction != nil {
		t.Errorf("transaction is %v", transaction)
	}
}

// checkUpsert: "The value is the object, as in after … A delete has no value. Control records have no value either".
func checkUpsert(t *testing.T, c *event.Change) {
	value := Upsert.AppendValue(nil, c)
	if (len(value) == 0) != (c.Type.IsControl() || c.Type == event.Deleted || !Upsert.CanRepresent(c)) {
		t.Errorf("%s: the value is %q", c.ID(), value)
	}
	if len(value) > 0 && len(c.Omitted) == 0 && !bytes.Equal(value, c.After) {
		t.Errorf("%s: %s is not the object %s", c.ID(), value, c.After)
	}
}

// checkFactsHeader: "If a format has no value for a change, or its value does not show why an object is incomplete, the
// header … holds the native object without patch, before and after".
func checkFactsHeader(t *testing.T, c *event.Change) {
	for _, f := range All() {
		if len(f.AppendValue(nil, c)) == 0 && !f.NeedsFactsHeader(c) {
			t.Errorf("%v: %s has neither a value nor facts", f, c.ID())
		}
	}
	if len(c.Omitted) > 0 && !Upsert.NeedsFactsHeader(c) {
		t.Errorf("%s: nothing shows that the object is incomplete", c.ID())
	}
	facts, order := readObject(t, AppendFacts(nil, c))
	for _, body := range []string{"patch", "before", "after"} {
		if slices.Contains(order, body) {
			t.Errorf("%s is among the facts %v", body, facts)
		}
	}
}

// checkKeys: the form of the key, and "No value of the formats json, cloudevents and cloudevents-structured is ever empty".
func checkKeys(t *testing.T, c *event.Change) {
	group := c.Resource.Group
	if group == "" {
		group = "core"
	}
	last := c.Name
	switch c.Type {
	case event.Watermark:
		last = "/watermark"
	case event.PartialBegin, event.PartialEnd:
		last = "/partial"
	case event.ReplayEnd:
		last = "/replay"
	case event.Replayed:
		last = c.Name + "/replayed"
	}
	if want := c.Cluster + "/" + group + "/" + c.Resource.Resource + "/" + c.Namespace + "/" + last; c.Key() != want {
		t.Errorf("key %s, want %s", c.Key(), want)
	}
	for _, f := range []Format{JSON, CloudEvents, CloudEventsStructured} {
		if value := f.AppendValue(nil, c); len(value) < len(`{"id":""}`) || bytes.ContainsRune(value, '\n') {
			t.Errorf("%v: %s is %q", f, c.ID(), value)
		}
	}
}
