package shape

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/pkg/shape/filter"
)

// advice marks a statement without a test: a recommendation rather than a behavior.
const advice = "advice"

// statements lists the paragraphs, list items and table rows of docs/shaping.md by section, each identified by its first
// words, with the tests that check it: file and function. Tests of this package are listed without a directory.
var statements = map[string]map[string]string{
	"Shaping changes": {
		"Rules and routes decide": "shaper_test.go TestDefaultPolicyStoresNoStates; plants_test.go TestNoPlantedValueIsSeen; test/e2e/secrets_test.go TestSecretsAreNeverShown",
	},
	"Secrets": {
		"A path with one letter wrong redacts nothing.": "test/e2e/source/held_test.go TestEditIsReportedWithoutStrict; " +
			"test/e2e/source/held_test.go TestRenamedMemberHoldsItsType; schema_test.go TestAPathOfOneTypeIsEnough",
		"Definitions are edited while": "test/e2e/source/held_test.go TestRenamedMemberHoldsItsType; " +
			"test/e2e/source/held_test.go TestMendedDefinitionReleasesItsType; test/e2e/source/held_test.go TestOtherVersionHoldsItsType; " +
			"test/e2e/source/held_test.go TestEditHoldsTheTypesOfOneRule; test/e2e/source/held_test.go TestEditIsReportedWithoutStrict; " +
			"internal/app/protection_test.go TestAResponseIsVerifiedByTheDefinitionBeforeAndAfter; " +
			"internal/app/protection_test.go TestARuleIsHeldWhileTheOnlyTypeWithAPathIsUninstalled; " +
			"internal/app/protection_test.go TestAPageCostsOneSmallAnswerAboutItsType; " +
			"pkg/source/apiserver/definition_test.go TestMetadataOfADefinitionIdentifiesIt",
		"- A definition that cannot be read": "test/e2e/source/held_test.go TestUnreadableDefinitionHoldsNewConnections",
		"- A definition that was edited": "internal/app/protection_test.go TestAResponseIsVerifiedByTheDefinitionBeforeAndAfter; " +
			"test/e2e/source/held_test.go TestMendedDefinitionReleasesItsType",
		"- An aggregated API server that":   "internal/app/protection_test.go TestAnEditedOpenAPIDocumentIsNoticed",
		"- The definition that counts":      "schema_test.go TestPathsAreMatchedWithDefinitions; test/e2e/source/held_test.go TestOtherVersionHoldsItsType",
		"For types that may be custom":      "internal/app/protection_test.go TestTheRightToReadDefinitionsIsNeededForStrict; cmd/exporter/rbac_test.go TestRightsAreTheLeast",
		"A path names one place":            "schema_alike_test.go TestPlacesOfTheSameTypeAreNamed",
		"- The same type is":                "schema_alike_test.go TestPlacesOfTheSameTypeAreNamed",
		"The check proves that a member":    "schema_test.go TestPathsAreMatchedWithSchemas; schema_test.go TestAPathOfOneTypeIsEnough",
		"Of a Secret, only values that":     "redact_test.go TestSecretsShowOnlyNames; test/e2e/secrets_test.go TestSecretsAreNeverShown",
		"| `apiVersion`, `kind`":            "redact_test.go TestSecretsShowOnlyNames",
		"| of `metadata`:":                  "statements_test.go TestTheMembersOfASecretThatThePageNamesAreShown",
		"| values of labels":                "copy_test.go TestLabelsAndAnnotationsOfSecretsAreShownByName",
		"| values of annotations":           "copy_test.go TestLabelsAndAnnotationsOfSecretsAreShownByName",
		"| `data`, `stringData`":            "copy_test.go TestSecretsOfAnyFormAreRedacted; plants_test.go TestNoPlantedValueIsSeen",
		"The names of data, labels":         "redact_test.go TestSecretsShowOnlyNames",
		"In all other resources":            "redact_test.go TestAnObjectWithNothingToHideIsNotCopied",
		"- values at the rule's":            "redact_test.go TestConfiguredPathsAreRedactedInAnyResource",
		"- copies of objects":               "copy_test.go TestCopiesOnOtherKindsAreRedacted",
		"| `mask` (default)":                "statements_test.go TestModesShowChangesOfRedactedValues",
		"| `hmac` |":                        "statements_test.go TestModesShowChangesOfRedactedValues",
		"| `drop` |":                        "statements_test.go TestModesShowChangesOfRedactedValues; redact_test.go TestDroppingLeavesValidJSON",
		"| `none` |":                        "statements_test.go TestModesShowChangesOfRedactedValues",
		"A path to an object":               "redact_test.go TestConfiguredPathsAreRedactedInAnyResource",
		"`redact: none` shows Secrets":      "internal/config/config_test.go TestEveryBadFileGetsItsMessage; pkg/source/selection/explanation_test.go TestFirstMatchingRuleOwnsTheResource",
		"An object that cannot be redacted": "redact_test.go TestUnredactableObjectsAreWithheld; depth_test.go TestAnObjectNestedTooDeepIsWithheldWithThatReason; shaper_test.go TestWithheldStateIsNotUsedAsStateBefore",
		"Copies made by other components":   advice,
	},
	"Hashes": {
		"KEY is 8 hexadecimal digits": "statements_test.go TestAHashHasTheDocumentedForm; redact_test.go TestWithScopeGlobalEqualValuesHaveEqualHashes",
		"| `object` (default)":        "redact_test.go TestAHashIsBoundToItsObjectAndItsPlace",
		"| `global` |":                "redact_test.go TestWithScopeGlobalEqualValuesHaveEqualHashes",
		"With `global` **a user":      advice,
	},
	"Copies in annotations": {
		"An annotation with any other name": "copy_search_test.go TestCopiesInAnnotationsOfAnyNameAreRedacted",
		"- a value has the last two":        "copy_search_test.go TestCopiesInAnnotationsOfAnyNameAreRedacted",
		"- it holds a redacted value":       "copy_search_test.go TestCopiesInAnnotationsOfAnyNameAreRedacted",
		"- it begins as JSON":               "copy_search_test.go TestCopiesInAnnotationsOfAnyNameAreRedacted",
		"Only the annotations of the":       "copy_search_test.go TestOnlyTheOwnAnnotationsOfAnObjectAreSearched",
		"The same search, with":             "copy_search_test.go TestValuesOfASecretAreSearchedInItsShownAnnotations",
		"An annotation that is redacted":    "copy_memory_test.go TestARotatedValueStaysHiddenInItsCopy; copy_memory_test.go TestAChangedAnnotationIsJudgedAnew; copy_memory_test.go TestVerdictsOfAnObjectAreBounded",
		"- After a restart without":         "copy_memory_test.go TestARotatedValueStaysHiddenInItsCopy",
		"- A [replicated state]":            "copy_memory_test.go TestAfterAFailoverNoCopyIsShownUntilItChanges",
		"- An exporter that first sees":     advice,
		"The search does **not**":           "copy_search_test.go TestTheLimitsOfTheSearchAreThoseOfTheDocs",
		"- no JSON:":                        "copy_search_test.go TestTheLimitsOfTheSearchAreThoseOfTheDocs",
		"- an encoding:":                    "copy_search_test.go TestTheLimitsOfTheSearchAreThoseOfTheDocs",
		"- an earlier value":                "copy_search_test.go TestTheLimitsOfTheSearchAreThoseOfTheDocs",
		"Name such an annotation":           "copy_search_test.go TestTheLimitsOfTheSearchAreThoseOfTheDocs",
		"Tools keep the applied":            "copy_test.go TestCopiesOnOtherKindsAreRedacted; copy_test.go TestCopiesOfSecretsInAnotherGroupAreRedacted",
	},
	"When redaction changes": {
		"`redact`, `redactPaths`,":  "seal_test.go TestFirstChangeUnderAnotherRedactionIsMarked",
		"- the existing contents":   "internal/journal/rewrite_test.go TestRewrittenDataIsLeftInNoFile; statements_test.go TestStoredChangesFollowTheCurrentRules; redact_test.go TestStoredValuesAreNotRedactedTwice; test/e2e/secrets_test.go TestChangedRedactionLeavesNoPlaintext",
		"- the next change of each": "seal_test.go TestFirstChangeUnderAnotherRedactionIsMarked; seal_test.go TestRedactionChangeIsMarkedOnceEmitted; pkg/format/samples_test.go TestEveryFormatIsTheDocumentedForm",
	},
	"Stored digests": {
		"To determine which part": "seal_test.go TestSummariesAreStoredEncrypted; seal_test.go TestSummaryUnderAnotherKeyIsLost",
	},
	"Annotations of Secrets that are shown": {
		"<!-- list":                        "copy_test.go TestTheListOfHarmlessAnnotationsIsDocumented",
		"- `kubernetes.io/service-account": "copy_test.go TestTheListOfHarmlessAnnotationsIsDocumented",
		"- `meta.helm.sh/release-name":     "copy_test.go TestTheListOfHarmlessAnnotationsIsDocumented",
		"- `argocd.argoproj.io":            "copy_test.go TestTheListOfHarmlessAnnotationsIsDocumented",
		"- `cert-manager.io":               "copy_test.go TestTheListOfHarmlessAnnotationsIsDocumented",
		"- `auth.openshift.io":             "copy_test.go TestTheListOfHarmlessAnnotationsIsDocumented",
		"- `reflector.v1":                  "copy_test.go TestTheListOfHarmlessAnnotationsIsDocumented",
	},
	"Which changes are emitted": {
		"| `filter` |":            "filter_test.go TestFiltersChooseChanges",
		"| `onlyIfChanged` |":     "shaper_test.go TestUpdatesOutsideTheListedPathsAreNotEmitted",
		"| `ignoreChanges` |":     "shaper_test.go TestUpdatesOutsideTheListedPathsAreNotEmitted",
		"The two lists apply":     "statements_test.go TestListsApplyToUpdatesOnly; shaper_test.go TestControlRecordsPass; shaper_test.go TestUpdatesOutsideTheListedPathsAreNotEmitted; filter_test.go TestFiltersChooseChanges",
		"An update is emitted if": "shaper_test.go TestChangesOfMaskedValuesAreEmitted; statements_test.go TestListsApplyToUpdatesOnly",
	},
	"Expressions": {
		"[CEL](https://cel.dev)":         "filter_test.go TestFiltersChooseChanges",
		"| `object` |":                   "filter_test.go TestAFilterSeesTheLastStateOfWhatIsDeleted",
		"| `oldObject` |":                "filter_test.go TestAFilterSeesNoSecret; statements_test.go TestUsingOldObjectStoresStates",
		"| `change.type` `change.class`": "statements_test.go TestEveryVariableOfThePageIsOfItsType",
		"| `change.cluster`":             "statements_test.go TestEveryVariableOfThePageIsOfItsType",
		"| `change.actor.manager`":       "statements_test.go TestEveryVariableOfThePageIsOfItsType",
		"| `change.coalesced`":           "statements_test.go TestEveryVariableOfThePageIsOfItsType",
		"Expressions see objects": "filter_test.go TestAFilterThatFailsLosesNothing; filter_test.go TestAFilterThatFailsQuotesNothingOfTheObject; filter_test.go TestACostlyFilterIsCutOff; filter_test.go TestFilterErrorsAreFoundAtLoad; " +
			"statements_test.go TestAFilterSeesWhatFieldsLeavesOut; pkg/shape/filter/check_test.go TestWhatIsKnownIsEvaluated",
		"Bodies are decoded only for filters": "cost_test.go TestARuleWithoutAFilterNeverDecodesToAMap",
	},
	"How much of a change is emitted": {
		"| `before: full`":                "shaper_test.go TestAnUpdateCarriesTheStateBeforeIt",
		"| `changed: paths`":              "pkg/shape/diff/list_test.go TestPathsAreThoseOfTheValuesSorted; shaper_test.go TestAnUpdateCarriesTheStateBeforeIt",
		"| `changed: values`":             "pkg/shape/diff/list_test.go TestEveryDifferenceIsNamedOnceWithItsValues; pkg/shape/diff/list_test.go TestAListOfValuesIsBounded",
		"| `fields.drop`":                 "shaper_test.go TestFieldsAreKeptAndDropped",
		"| `fields.keep`":                 "shaper_test.go TestFieldsAreKeptAndDropped",
		"| `addAnnotations`":              "annotate_test.go TestAddedAnnotationsAreShapedAsTheObjectsOwn; annotate_test.go TestAddedAnnotationsAreInEachObject",
		"The values applied to the state": "pkg/shape/diff/list_test.go TestEveryListMakesAfterOfBefore; shaper_test.go TestDroppedFieldsAreInNoList; shaper_test.go TestFieldsAreKeptAndDropped",
		"All of these except `fields`":    "shaper_test.go TestStoredStatesAreRedacted; shaper_test.go TestDefaultPolicyStoresNoStates; statements_test.go TestAlwaysBeforeAppliesToAllRules",
	},
	"Where changes go": {
		"Without routes every change": "route_test.go TestTheFirstRouteThatMatchesDecides; internal/app/routing_test.go TestRoutingIDChangesWithRoutes",
		"| `select` `exclude`":        "internal/app/routing_test.go TestRoutesOfTheConfigurationAreFollowed",
		"| `namespaces`":              "internal/app/routing_test.go TestRoutesOfTheConfigurationAreFollowed",
		"| `types` `classes`":         "internal/app/routing_test.go TestRoutesOfTheConfigurationAreFollowed",
		"| `filter` | a CEL":          "route_test.go TestTheFirstRouteThatMatchesDecides; internal/config/config_test.go TestEveryBadFileGetsItsMessage",
		"All keys that a route":       "route_test.go TestTheFirstRouteThatMatchesDecides; pkg/sinks/nats/faults_test.go TestAStreamWithoutARoutedSubjectIsAnErrorWithARemedy; pkg/sinks/nats/contract_test.go TestBatchesKeepTheContract",
		"- **Dropped changes are not": "test/e2e/routes_test.go TestRoutesSendAndDropThroughRestarts",
		"- **To drop permanently":     advice,
		"- **Order holds within":      "test/e2e/routes_test.go TestRoutesSendAndDropThroughRestarts",
		"- **By a label or an anno":   "route_test.go TestARouteMayAskForAnAnnotation",
		"- **State needs every":       advice,
		"- **`gap` and the records":   "route_test.go TestControlRecordsGoToEverySinkOfTheirResource",
		"- **A filter that fails**":   "route_test.go TestTheFirstRouteThatMatchesDecides",
		"- **Edited routes**":         "internal/app/routing_test.go TestRoutingIDChangesWithRoutes",
	},
	"Paths": {
		"Names of members":               "redact_test.go TestInvalidPathsAreExplained",
		"| `spec.replicas`":              "redact_test.go TestConfiguredPathsAreRedactedInAnyResource",
		"| `spec.containers[*].image`":   "redact_test.go TestConfiguredPathsAreRedactedInAnyResource",
		"| `spec.data[*].token`":         "redact_test.go TestConfiguredPathsAreRedactedInAnyResource",
		"| `metadata.annotations[":       "redact_test.go TestConfiguredPathsAreRedactedInAnyResource; redact_test.go TestInvalidPathsAreExplained",
		"A path that an object does not": "redact_test.go TestConfiguredPathsAreRedactedInAnyResource; redact_test.go TestInvalidPathsAreExplained",
		"`redactPaths` cannot include":   "statements_test.go TestIdentityCannotBeRedacted",
	},
}

// TestEveryStatementOfTheShapingPageHasATest fails for a statement without a test, and for a listed test that does not
// exist.
func TestEveryStatementOfTheShapingPageHasATest(t *testing.T) {
	for section, all := range pageStatements(t) {
		named := statements[section]
		for _, text := range all {
			if !slices.ContainsFunc(mapKeys(named), func(begins string) bool { return strings.HasPrefix(text, begins) }) {
				t.Errorf("%s: no test is listed for %.60q", section, text)
			}
		}
		for begins, tests := range named {
			if !slices.ContainsFunc(all, func(text string) bool { return strings.HasPrefix(text, begins) }) {
				t.Errorf("%s: no statement of the page starts with %q", section, begins)
			}
			if tests != advice {
				requireTests(t, begins, tests)
			}
		}
	}
}

// requireTests checks that the listed tests exist.
func requireTests(t *testing.T, statement, tests string) {
	t.Helper()
	for test := range strings.SplitSeq(tests, "; ") {
		file, name, _ := strings.Cut(test, " ")
		if !strings.Contains(file, "/") {
			file = "pkg/shape/" + file
		}
		if text, err := os.ReadFile("../../" + file); err != nil || !bytes.Contains(text, []byte("func "+name+"(")) {
			t.Errorf("%q: %s not found in %s (%v)", statement, name, file, err)
		}
	}
}

func mapKeys(m map[string]string) (all []string) {
	for key := range m {
		all = append(all, key)
	}
	return all
}

// pageStatements returns the paragraphs, list items and table rows of the page by section, without table heads and code.
func pageStatements(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/shaping.md")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(string(page), "")
	all, section, open := map[string][]string{}, "", false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "":
			open = false
		case strings.HasPrefix(line, "#"):
			section = strings.TrimLeft(line, "# ")
		case strings.HasPrefix(line, "|--"): // the line above is the head of a table
			all[section] = all[section][:len(all[section])-1]
		case open && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "- "):
			all[section][len(all[section])-1] += " " + strings.TrimSpace(line)
		default:
			all[section], open = append(all[section], line), true
		}
	}
	if len(all) != len(statements) {
		t.Errorf("the page has %d sections, the tests know %d", len(all), len(statements))
	}
	return all
}

// quotedIn returns the names in `…` of the statement that starts with these words.
func quotedIn(t *testing.T, section, begins string) (names []string) {
	t.Helper()
	for _, text := range pageStatements(t)[section] {
		if strings.HasPrefix(text, begins) {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
				names = append(names, m[1])
			}
		}
	}
	if len(names) == 0 {
		t.Fatalf("%s: nothing is named in %q", section, begins)
	}
	return names
}

// Section "Secrets".
func TestTheMembersOfASecretThatThePageNamesAreShown(t *testing.T) {
	r, owner := redactorFor(t, Mask), false
	for _, name := range quotedIn(t, "Secrets", "| of `metadata`:")[1:] {
		owner = owner || name == "apiVersion"
		body := fmt.Sprintf(`{"metadata":{%q:"hunter"}}`, name)
		switch {
		case name == "finalizers":
			body = `{"metadata":{"finalizers":["hunter"]}}`
		case owner: // the names after apiVersion are members of an owner
			body = fmt.Sprintf(`{"metadata":{"ownerReferences":[{%q:"hunter"}]}}`, name)
		}
		if got := redactWith(t, r, secret, body); got != body {
			t.Errorf("%s became %s", body, got)
		}
	}
	if !owner {
		t.Error("the page names no member of an owner")
	}
}

// Section "Secrets", the table of modes: a changed value is visible as a change of its member, or only of the object.
func TestModesShowChangesOfRedactedValues(t *testing.T) {
	for mode, want := range map[string]struct {
		value string // regular expression for the redacted member
		shown bool
	}{Mask: {`"\*\*\*"`, false}, HMAC: {`"hmac-sha256:[0-9a-f]{8}:[0-9a-f]{32}"`, true}, Drop: {``, false}, None: {`"aHVudGVy"`, true}} {
		s := newScene(t, Policy{Redact: mode, Changed: changedPaths})
		s.shapeChanges(secretWith("aHVudGV"))
		got := s.shapeChanges(secretWith("aHVudGVy"))
		if len(got) != 1 || strings.Contains(string(got[0].Changed), `"/data/p"`) != want.shown {
			t.Fatalf("%s: emitted %d, changed %s", mode, len(got), got[0].Changed)
		}
		member := `"p":` + want.value
		if want.value == "" {
			member = ""
		}
		if !regexp.MustCompile(`"data":\{`+member+`\}`).Match(got[0].After) && (mode != Drop || bytes.Contains(got[0].After, []byte("aHV"))) {
			t.Errorf("%s: %s", mode, got[0].After)
		}
	}
}

// Section "Hashes".
func TestAHashHasTheDocumentedForm(t *testing.T) {
	for _, data := range hashOf(t, redactorFor(t, HMAC), "u", `{"data":{"a":"x","b":""}}`) {
		if !regexp.MustCompile(`^hmac-sha256:[0-9a-f]{8}:[0-9a-f]{32}$`).MatchString(data) {
			t.Error(data)
		}
	}
}

// Section "When redaction changes": the existing contents of the journal.
func TestStoredChangesFollowTheCurrentRules(t *testing.T) {
	hashed := hashOf(t, redactorFor(t, HMAC), "u", `{"data":{"p":"x"}}`)["p"]
	policies := []Policy{{Redact: HMAC}, {RedactPaths: []string{"spec.token"}}}
	s, err := New(policies, Options{Key: []byte(anotherKey), RuleOf: func(r event.Resource) (int, bool) { return 0, r == secret }})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		resource   event.Resource
		body, want string
	}{
		"a hash of another key":       {secret, `{"data":{"p":"` + hashed + `"}}`, `{"data":{"p":"***"}}`},
		"a mask":                      {secret, `{"data":{"p":"***"}}`, `{"data":{"p":"***"}}`},
		"what no rule selects":        {deployment, `{"spec":{"token":"hunter","n":1}}`, `{"spec":{"token":"***","n":1}}`},
		"a Secret of no rule's group": {event.Resource{Group: "g", Resource: "secrets"}, `{"spec":{"n":1}}`, `{"spec":{"n":1}}`},
	} {
		change := updatedTo(c.resource, c.body)
		if changed := s.RedactStoredChange(change); string(change.After) != c.want || changed != (c.body != c.want) {
			t.Errorf("%s: %s, changed %v", name, change.After, changed)
		}
	}
}

// TestAStoredChangeNamesNothingThatItsBodiesHide: changed is what the two states show. Without the state before, paths are
// left out; values are masked, since they show that state too, also where the state after has nothing to hide any more.
func TestAStoredChangeNamesNothingThatItsBodiesHide(t *testing.T) {
	s, err := New([]Policy{{RedactPaths: []string{"spec.token", "spec.env[*].value"}}}, Options{RuleOf: func(event.Resource) (int, bool) { return 0, true }})
	if err != nil {
		t.Fatal(err)
	}
	const before, after = `{"spec":{"token":"old","n":1}}`, `{"spec":{"token":"new","n":2}}`
	for name, c := range map[string]struct{ before, after, stored, changed string }{
		"paths and before":    {before, after, `["/spec/n","/spec/token"]`, `["/spec/n"]`},
		"paths alone":         {"", after, `["/spec/n","/spec/token"]`, `omitted`},
		"values and before":   {before, after, string(diff.Values([]byte(before), []byte(after))), `[{"path":"/spec/n","from":1,"to":2}]`},
		"values alone":        {"", after, string(diff.Values([]byte(before), []byte(after))), `[{"path":"/spec/n","from":1,"to":2}]`},
		"only the past hides": {"", `{"spec":{"n":2}}`, `[{"path":"/spec/token","from":"old"},{"path":"/spec/n","from":1,"to":2}]`, `[{"path":"/spec/n","from":1,"to":2},{"path":"/spec/token","from":"***"}]`},
		"values in items": {"", `{"spec":{"env":[{"name":"new","value":"a"},{"name":"b","value":"x"}]}}`,
			`[{"path":"/spec/env/[name=old]","from":{"name":"old","value":"o"},"index":1},{"path":"/spec/env/[name=b]/value","from":"y","to":"x"},{"path":"/spec/env/[name=new]","to":{"name":"new","value":"a"},"index":0}]`,
			`[{"path":"/spec/env/[name=old]","from":{"name":"old","value":"***"},"index":1},{"path":"/spec/env/[name=new]","to":{"name":"new","value":"***"},"index":0}]`},
		"values too long": {"", after, `[{"path":"/spec/token","omitted":["from","to"]}]`, `omitted`},
		"nothing to hide": {"", `{"spec":{"n":2}}`, `[{"path":"/spec/n","from":1,"to":2}]`, `[{"path":"/spec/n","from":1,"to":2}]`},
	} {
		change := updatedTo(deployment, c.after)
		if change.Changed = []byte(c.stored); c.before != "" {
			change.Before = []byte(c.before)
		}
		changed, got := s.RedactStoredChange(change), string(change.Changed)
		if slices.Contains(change.Omitted, "changed") {
			got += "omitted"
		}
		if got != c.changed || changed == (name == "nothing to hide") || (change.Before == nil) != (c.before == "") {
			t.Errorf("%s: changed is %s, want %s; before %s, rewritten %v", name, got, c.changed, change.Before, changed)
		}
		if s.RedactStoredChange(change) {
			t.Errorf("%s: it changes again", name)
		}
	}
}

// Section "Which changes are emitted".
func TestListsApplyToUpdatesOnly(t *testing.T) {
	for _, p := range []Policy{{OnlyIfChanged: []string{"spec.none"}}, {IgnoreChanges: []string{"spec", "status"}}} {
		s := newScene(t, p)
		for _, kind := range []event.Type{event.Added, event.Snapshot, event.Sync, event.Deleted} {
			c := updatedTo(deployment, newObject("1", "1"))
			c.Type, c.Class = kind, ""
			if len(s.shapeChanges(c)) != 1 {
				t.Errorf("%+v: %s is not emitted", p, kind)
			}
		}
		if len(s.shapeChanges(updatedTo(deployment, newObject("2", "2")))) != 1 {
			t.Errorf("%+v: an update without a known previous state was not emitted", p)
		}
		if len(s.shapeChanges(updatedTo(deployment, newObject("3", "3")))) != 0 {
			t.Errorf("%+v: an update outside the lists was emitted", p)
		}
	}
}

// Section "Expressions", the table of variables.
func TestEveryVariableOfThePageIsOfItsType(t *testing.T) {
	zero := updatedTo(event.Resource{}, `{}`)
	zero.Namespace, zero.Name, zero.UID, zero.Class = "", "", "", ""
	for begins, want := range map[string]string{"| `change.cluster`": `""`, "| `change.actor.manager`": `""`, "| `change.coalesced`": "false"} {
		for _, name := range quotedIn(t, "Expressions", begins) {
			if !strings.HasPrefix(name, "change.") {
				continue
			}
			f, err := filter.Compile(name+" == "+want, true)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if yes, err := f.Matches(zero, nil); !yes || err != nil {
				t.Errorf("%s is not %s where it is not known: %v", name, want, err)
			}
		}
	}
	for _, kind := range []event.Type{event.Added, event.Updated, event.Deleted, event.Snapshot, event.Sync} {
		c := *zero
		c.Type = kind
		f, err := filter.Compile(fmt.Sprintf(`change.type == %q && change.class == ""`, kind), true)
		if err != nil {
			t.Fatal(err)
		}
		if yes, err := f.Matches(&c, nil); !yes || err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// Section "Expressions": "An expression that uses it makes the rule store states".
func TestUsingOldObjectStoresStates(t *testing.T) {
	for filter, keeps := range map[string]bool{`oldObject == null`: true, `object != null`: false, `change.name == "oldObject"`: false} {
		s := newScene(t, Policy{Filter: filter})
		s.shapeChanges(addedWith(newObject("1", "1")))
		if (len(s.bodies) == 1) != keeps {
			t.Errorf("%s: stores %v", filter, s.bodies)
		}
	}
}

// Section "Expressions": "Expressions see objects redacted but complete".
func TestAFilterSeesWhatFieldsLeavesOut(t *testing.T) {
	s := newScene(t, Policy{Filter: `object.status == "seen"`, Fields: Fields{Drop: []string{"status"}}})
	got := s.shapeChanges(addedWith(newObject("1", `"seen"`)))
	if len(got) != 1 || bytes.Contains(got[0].After, []byte("seen")) {
		t.Errorf("%v", got)
	}
}

// Section "How much of a change is emitted": a format that requires the state before turns it on for all rules.
func TestAlwaysBeforeAppliesToAllRules(t *testing.T) {
	kept := &store{}
	shaper, err := New([]Policy{{}, {Changed: "paths"}}, Options{AlwaysBefore: true, Bodies: kept})
	if err != nil {
		t.Fatal(err)
	}
	for rule := range 2 {
		to := shaper.WrapAppend(rule, kept.appendObservation)
		for _, c := range []*event.Change{addedWith(newObject("1", "1")), updatedTo(deployment, newObject("2", "2"))} {
			if err := to(t.Context(), event.Observation{Resource: deployment, Changes: []*event.Change{c}}); err != nil {
				t.Fatal(err)
			}
		}
		if got := kept.emitted[len(kept.emitted)-1]; string(got.Before) != newObject("1", "1") {
			t.Errorf("rule %d: before %s", rule, got.Before)
		}
	}
}

// Section "Paths": members that redactPaths cannot include.
func TestIdentityCannotBeRedacted(t *testing.T) {
	for _, name := range quotedIn(t, "Paths", "`redactPaths` cannot include") {
		switch name {
		case "redactPaths", "metadata":
			continue
		case "name", "namespace", "uid", "resourceVersion":
			name = "metadata." + name
		}
		if err := (Policy{RedactPaths: []string{name}}).Validate("resources[0]", true); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
