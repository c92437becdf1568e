package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// clientAnswers records the truth from the responses that the clients got: the actors by version and by removed object.
type clientAnswers struct {
	mu       sync.Mutex
	versions map[string]map[string]bool // uid@version: actors
	removed  map[string]map[string]bool // uid: actors that may have deleted the object
	unknown  map[string]bool            // resource/namespace/name of objects to which requests were lost, or answers
	// stampable holds the versions, as uid@version, that a write of the object itself was answered with, and no other write.
	stampable, otherwise map[string]bool
}

func newClientAnswers() *clientAnswers {
	return &clientAnswers{versions: map[string]map[string]bool{}, removed: map[string]map[string]bool{}, unknown: map[string]bool{},
		stampable: map[string]bool{}, otherwise: map[string]bool{}}
}

func (b *clientAnswers) recordAnswer(u *user, h answerHead, removes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	add := func(to map[string]map[string]bool, key string) {
		if to[key] == nil {
			to[key] = map[string]bool{}
		}
		to[key][u.actorName()] = true
	}
	uid := h.Metadata.UID
	// A write to a deleting object without finalizers deletes it, whatever its verb. If no grace is left, it does so at once,
	// and is answered with the version that it found.
	ends := h.Metadata.DeletionTimestamp != "" && len(h.Metadata.Finalizers) == 0
	found := ends && h.Metadata.DeletionGracePeriodSeconds == 0
	if h.Kind == "Status" {
		uid = h.Details.UID
	} else if uid != "" && !found {
		add(b.versions, uid+"@"+h.Metadata.ResourceVersion)
	}
	if (removes || ends) && uid != "" {
		add(b.removed, uid)
	}
	for _, item := range h.Items {
		add(b.removed, item.Metadata.UID)
	}
}

// recordUnknown records that a request to an object had no answer that shows whether it was carried out. base is the path
// of the object's collection, of which the request may have been too.
func (b *clientAnswers) recordUnknown(base, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	parts := strings.Split(base, "/")
	resource, namespace := parts[len(parts)-1], parts[len(parts)-2]
	b.unknown[resource+"/"+namespace+"/"+name], b.unknown[resource+"/"+namespace+"/g-"] = true, true
}

// isUnknown reports whether answers do not show all that was done to the object of a change.
func (b *clientAnswers) isUnknown(c map[string]any) bool {
	object := fmt.Sprintf("%v/%v/", c["resource"], c["namespace"])
	name, _ := c["name"].(string)
	return b.unknown[object+name] || strings.HasPrefix(name, "g-") && b.unknown[object+"g-"]
}

// trueAuthor returns the author of a change if only one client can have made it; "" otherwise.
func (b *clientAnswers) trueAuthor(c, before map[string]any) string {
	uid, _ := c["uid"].(string)
	if c["type"] == "deleted" {
		if b.isUnknown(c) {
			return ""
		}
		return soleActor(b.removed[uid])
	}
	signature, was := signatureOf(c), signatureOf(before)
	if signer, _, _ := strings.Cut(signature, "#"); signature != was && signer != "" && signer != masked { // a write of content
		return signer
	}
	if b.isUnknown(c) {
		return ""
	}
	if c["class"] == "deleting" || hasEvictionCondition(c) && !hasEvictionCondition(before) {
		return soleActor(b.removed[uid])
	}
	return soleActor(b.versions[uid+"@"+c["resourceVersion"].(string)])
}

// hasEvictionCondition reports whether the state in a record has the condition of an eviction.
func hasEvictionCondition(c map[string]any) bool {
	after, _ := c["after"].(map[string]any)
	status, _ := after["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	return slices.ContainsFunc(conditions, func(c any) bool { return c.(map[string]any)["type"] == "DisruptionTarget" })
}

func soleActor(actors map[string]bool) string {
	if len(actors) != 1 {
		return ""
	}
	for actor := range actors {
		return actor
	}
	return ""
}

// signatureOf returns the signature of the state in a record: the user who made the newest write of content, and behind #
// what makes each signature unique. A user may sign twice in a row.
func signatureOf(c map[string]any) string {
	after, _ := c["after"].(map[string]any)
	metadata, _ := after["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	text, _ := annotations["signed"].(string)
	return text
}

// verdict counts the results for all changes.
type verdict struct {
	changes, named, judged, wrong int
	logged, loggedNamed, unlogged int // changes that certainly a user made whose bodies are logged, or nothing of it
	secrets, secretsNamed         int
	unnamed                       map[string]int // all without an author, by kind of change
	loggedUnnamed                 map[string]int // those of logged
}

// judgeStream compares the stream with the records of the clients.
func (a *audited) judgeStream() verdict {
	a.t.Helper()
	v := verdict{unnamed: map[string]int{}, loggedUnnamed: map[string]int{}}
	again := map[string]bool{}
	records := a.readRecords()
	by := a.authorsByID(records)
	before := map[string]map[string]any{}
	for _, c := range records {
		id, _ := c["id"].(string)
		uid, _ := c["uid"].(string)
		if c["after"] == nil && c["type"] != "deleted" || again[id] {
			continue
		}
		again[id] = true
		was := before[uid]
		before[uid] = c // also of what a list revealed: several writes made it, and the next change is one of that state
		if !slices.Contains([]any{"added", "updated", "deleted"}, c["type"]) || c["coalesced"] == true {
			continue
		}
		truth := a.by.trueAuthor(c, was)
		if a.stamped && by[id] != truth {
			truth = userOf(truth)
		}
		if c["resource"] == "secrets" {
			v.secrets++
			if by[id] != "" {
				v.secretsNamed++
			}
		} else {
			v.changes++
			if by[id] != "" {
				v.named++
			} else {
				v.unnamed[kindOf(c)]++
			}
		}
		if truth == writer(unloggedUser) {
			v.unlogged++
		} else if truth != "" && c["namespace"] == generatedLevels[0].namespace && c["resource"] != "secrets" {
			v.logged++
			if by[id] != "" {
				v.loggedNamed++
			} else {
				v.loggedUnnamed[kindOf(c)]++
			}
		}
		if by[id] == "" || truth == "" {
			continue
		}
		v.judged++
		if by[id] != truth {
			v.wrong++
			a.t.Errorf("%s %s (%v) has author %s, want %s; answered with the version: %v; removed the object: %v; change: %v; before: %v",
				c["resource"], id, c["class"], by[id], truth, a.by.versions[fmt.Sprint(uid, "@", c["resourceVersion"])], a.by.removed[uid], c, was)
		}
	}
	return v
}

// kindOf names the kind of a change: its type, its resource and what it is about.
func kindOf(c map[string]any) string {
	return fmt.Sprint(c["type"], " ", c["resource"], " ", c["class"])
}

// authorsByID returns the author of each change, by the ID of the change.
func (a *audited) authorsByID(records []map[string]any) map[string]string {
	a.t.Helper()
	by := map[string]string{}
	for _, c := range records {
		if c["type"] != "attributed" {
			continue
		}
		who, _ := c["by"].(map[string]any)
		name, _ := who["user"].(string)
		if impersonator, _ := who["impersonator"].(string); impersonator != "" {
			name += " by " + impersonator
		}
		of, _ := c["of"].(string)
		if by[of] != "" && by[of] != name {
			a.t.Errorf("%s has two authors, %s and %s", of, by[of], name)
		}
		by[of] = name
	}
	return by
}

// userOf returns the user of an actor without the impersonator, whom a stamp does not have.
func userOf(actor string) string {
	name, _, _ := strings.Cut(actor, " by ")
	return name
}

func (a *audited) readRecords() []map[string]any {
	a.t.Helper()
	text, err := os.ReadFile(a.stream)
	if err != nil {
		a.t.Fatal(err)
	}
	var all []map[string]any
	for line := range bytes.Lines(text) {
		var c map[string]any
		if json.Unmarshal(line, &c) == nil {
			all = append(all, c)
		}
	}
	return all
}

// TestASecondSignatureOfOneUserIsRecognised judges a write of a user whose signature the state already had, in a version
// that another user was answered, who changed nothing.
func TestASecondSignatureOfOneUserIsRecognised(t *testing.T) {
	state := func(version, signature string) map[string]any {
		return map[string]any{"type": "updated", "uid": "u", "resourceVersion": version,
			"after": map[string]any{"metadata": map[string]any{"annotations": map[string]any{"signed": signature}}}}
	}
	answers, h := newClientAnswers(), answerHead{}
	h.Metadata.UID, h.Metadata.ResourceVersion = "u", "7"
	answers.recordAnswer(&user{name: "writer-3"}, h, false)
	if author := answers.trueAuthor(state("7", "writer-2#2"), state("6", "writer-2#1")); author != "writer-2" {
		t.Errorf("a second signature: %q", author)
	}
	if author := answers.trueAuthor(state("7", "writer-2#1"), state("6", "writer-2#1")); author != "writer-3" {
		t.Errorf("the same signature: %q", author)
	}
}

// TestWhatAListRevealedIsNotOfTheNextAuthor judges a write without a signature, after a state that a list revealed: the
// signature in that state is not of the one that wrote next.
func TestWhatAListRevealedIsNotOfTheNextAuthor(t *testing.T) {
	a := &audited{t: t, by: newClientAnswers(), stream: filepath.Join(t.TempDir(), "stream")}
	record := func(kind, version, signer, more string) string {
		return `{"type":"` + kind + `","id":"c/u/` + version + `/` + kind + `","uid":"u","resourceVersion":"` + version + `","resource":"pods","namespace":"busy-0",` +
			more + `"after":{"metadata":{"annotations":{"signed":"` + signer + `#1"}}}}` + "\n"
	}
	stream := record("added", "5", "writer-1", "") + record("updated", "6", "writer-2", `"coalesced":true,`) + record("updated", "7", "writer-2", "") +
		`{"type":"attributed","id":"c/u/7/attributed","of":"c/u/7/updated","by":{"user":"writer-3"}}` + "\n"
	if err := os.WriteFile(a.stream, []byte(stream), 0o600); err != nil {
		t.Fatal(err)
	}
	u := &user{name: "writer-3"}
	h := answerHead{}
	h.Metadata.UID, h.Metadata.ResourceVersion = "u", "7"
	a.by.recordAnswer(u, h, false)
	if v := a.judgeStream(); v.judged != 1 || v.wrong != 0 {
		t.Errorf("%+v", v)
	}
}
