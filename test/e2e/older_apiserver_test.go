package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/controlplane"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// withOlderServer adds a second API server of a version that does not know the policy of stamps, as there is during an
// upgrade. Its users forge no stamps: there is nothing that would replace them.
func withOlderServer(a *audited, o *controlplane.Options) {
	a.older, o.Second, o.SecondArgs = true, true, []string{"--emulated-version=1.35"}
}

// isOlder reports whether an API server does not know the policy of stamps.
func (a *audited) isOlder(url string) bool {
	servers := a.plane.APIServers()
	return a.older && strings.HasSuffix(url, servers[len(servers)-1].Address())
}

// TestWritesThroughAnOlderAPIServerNameNoWrongAuthor lets half of the users write through an API server that does not stamp.
// Their changes leave the stamps of others, or copy them to other objects, and must have no author.
func TestWritesThroughAnOlderAPIServerNameNoWrongAuthor(t *testing.T) {
	require.Long(t)
	a := newStamped(t, false, withOlderServer)
	copies := a.copyObjects()
	a.writeLoad(fewWrites, spread)
	a.awaitSettled()
	v := a.judgeStream()
	t.Logf("%+v", v)
	if a.verifyStamps(v); v.named == 0 || v.unnamed["updated configmaps metadata"] == 0 {
		t.Error("no change has an author, or all have one, so the test proves nothing")
	}
	by := a.authorsByID(a.readRecords())
	for _, c := range a.readRecords() {
		id, _ := c["id"].(string)
		if uid, _ := c["uid"].(string); copies[uid] != "" && c["type"] != "attributed" {
			if by[id] != "" {
				t.Errorf("%s has author %s: %s", copies[uid], by[id], id)
			}
			delete(copies, uid)
		}
	}
	for _, what := range copies {
		t.Errorf("%s is not in the stream", what)
	}
}

// copyObjects creates objects through the first API server, and copies them through the older one with all of their
// annotations: to another object of the kind, and to one of each other kind with the same name, as controllers do with those
// of the object that they serve. It returns what was copied by the UID of the copy.
func (a *audited) copyObjects() map[string]string {
	a.t.Helper()
	owner, other, copies := a.newUser(0), a.newUser(1), map[string]string{}
	if a.isOlder(owner.url) || !a.isOlder(other.url) {
		a.t.Fatal("the users write through other API servers than expected")
	}
	for i, kind := range attributedKinds {
		name := fmt.Sprintf("original-%d", i)
		whole := func(kind attributedKind, name, annotations string) string {
			return "{" + kind.head + `,"metadata":{` + name + `,"annotations":` + annotations + "}," + kind.spec + "}"
		}
		at := fmt.Sprintf(kind.path, "busy-0")
		for _, form := range []string{`"name":"` + name + `"`, `"generateName":"` + name + `-"`} {
			made := owner.mustDo(a.t, http.MethodPost, at, whole(kind, form, "{}"))
			annotations := string(must(json.Marshal(made.Metadata.Annotations)))
			if !strings.Contains(annotations, owner.name) {
				a.t.Fatalf("%s is not stamped: %s", made.Metadata.Name, annotations)
			}
			for n, to := range attributedKinds {
				target := `"name":"` + made.Metadata.Name + `"`
				if n == i {
					target = `"name":"` + made.Metadata.Name + `-copy"`
				}
				h := other.mustDo(a.t, http.MethodPost, fmt.Sprintf(to.path, "busy-0"), whole(to, target, annotations))
				copies[h.Metadata.UID] = fmt.Sprintf("a copy of a stamp, from %s to %s", kind.head, to.head)
			}
			h := other.mustDo(a.t, http.MethodPost, fmt.Sprintf(kind.path, "busy-1"), whole(kind, `"name":"`+made.Metadata.Name+`"`, annotations))
			copies[h.Metadata.UID] = "a copy of a stamp to another namespace, " + kind.head
		}
	}
	return copies
}

// TestUpdatesThroughAnAPIServerWithoutTheAdmissionPolicyHaveNoAuthor has the audit log alone, of two API servers. The
// second one annotates nothing. An update without a precondition may have changed nothing there, so it names no author, and
// keeps those from being named whose requests were answered with the same version.
func TestUpdatesThroughAnAPIServerWithoutTheAdmissionPolicyHaveNoAuthor(t *testing.T) {
	require.Long(t)
	a := newAudited(t, func(_ *audited, o *controlplane.Options) {
		o.Second, o.SecondArgs = true, []string{"--disable-admission-plugins=ValidatingAdmissionPolicy"}
	})
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, second := a.newUser(2), a.newUser(3)
	want := map[string]string{} // author by the end of the ID of a change, "" for none
	update := func(h answerHead, author string) { want[strings.Replace(addedID(h), "/added", "/updated", 1)] = author }
	item := func(name string) string { return "/api/v1/namespaces/busy-0/configmaps/" + name }
	const change = `{"metadata":{"labels":{"a":"b"}}}`
	for _, name := range []string{"patched-there", "patched-here", "found-there", "updated-there", "created-there"} {
		creator := first
		if name == "created-there" {
			creator = second
		}
		want[addedID(creator.createConfigMap(t, name, ""))] = creator.name
	}
	update(second.mustDo(t, http.MethodPatch, item("patched-there"), change), "")
	update(first.mustDo(t, http.MethodPatch, item("patched-here"), change), first.name)
	if err := a.exporter.Pause(); err != nil { // a request that is received after the change was observed has not made it
		t.Fatal(err)
	}
	update(first.mustDo(t, http.MethodPatch, item("found-there"), change), "")
	second.mustDo(t, http.MethodPatch, item("found-there"), change) // answered with the same version
	if err := a.exporter.Resume(); err != nil {
		t.Fatal(err)
	}
	body, _ := second.readSigned(t.Context(), item("updated-there"), `"annotations":{"signed":"`+second.name+`#0"}`)
	update(second.mustDo(t, http.MethodPut, item("updated-there"), body), second.name)

	a.writeLoad(fewWrites/2, spread)
	a.awaitSettled()
	v := a.judgeStream()
	t.Logf("%+v", v)
	by := a.authorsByID(a.readRecords())
	for id, author := range want {
		if by[id] != author {
			t.Errorf("%s has author %q, want %q", id, by[id], author)
		}
	}
	if a.sumMetric(`kubecdc_unresolved_total{reason="annotation"}`) == 0 || a.sumMetric(`kubecdc_unresolved_total{reason="several"}`) == 0 {
		t.Error("no change is counted that has no author because an API server annotates nothing")
	}
}

func (u *user) createConfigMap(t *testing.T, name, more string) answerHead {
	t.Helper()
	return u.mustDo(t, http.MethodPost, "/api/v1/namespaces/busy-0/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"`+more+`}}`)
}

// addedID returns the end of the ID of the record of a create, from the UID on.
func addedID(h answerHead) string {
	return "e2e/" + h.Metadata.UID + "/" + h.Metadata.ResourceVersion + "/added"
}
