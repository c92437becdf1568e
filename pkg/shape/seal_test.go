package shape

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

const (
	oneKey     = "0123456789abcdef"
	anotherKey = "fedcba9876543210"
)

func secretWith(value string) *event.Change {
	return updatedTo(secret, `{"kind":"Secret","metadata":{"name":"a"},"data":{"p":"`+value+`"}}`)
}

func TestSummariesAreStoredEncrypted(t *testing.T) {
	for name, c := range map[string]struct {
		change   *event.Change
		policy   Policy
		key      string
		survives bool // a restart
	}{
		"a Secret, without a key":         {secretWith("hunter"), Policy{}, "", false},
		"a Secret, with a key":            {secretWith("hunter"), Policy{}, oneKey, true},
		"a Secret in plain":               {secretWith("hunter"), Policy{Redact: None}, "", true},
		"something with paths":            {updatedTo(deployment, `{"spec":"hunter"}`), Policy{RedactPaths: []string{"spec"}}, "", false},
		"something with paths, and a key": {updatedTo(deployment, `{"spec":"hunter"}`), Policy{RedactPaths: []string{"spec"}}, oneKey, true},
		"anything else":                   {updatedTo(deployment, `{"spec":"hunter"}`), Policy{}, "", true},
	} {
		s := newScene(t, Policy{})
		s.restartWith(c.policy, c.key)
		want := "digests of " + string(c.change.After)
		s.shapeChanges(c.change)
		if strings.Contains(s.known["n/a"].Summary, "hunter") {
			t.Errorf("%s: stored is %q", name, s.known["n/a"].Summary)
		}
		got := s.restartWith(c.policy, c.key)["n/a"]
		if (got == want) != c.survives || !c.survives && got != "" {
			t.Errorf("%s: after a restart the summary is %q", name, got)
		}
	}
}

func TestSummaryUnderAnotherKeyIsLost(t *testing.T) {
	s := newScene(t, Policy{})
	s.shapeChanges(secretWith("hunter"))
	if got := s.restartWith(Policy{}, anotherKey)["n/a"]; got != "" {
		t.Errorf("the summary is %q", got)
	}
}

func TestFirstChangeUnderAnotherRedactionIsMarked(t *testing.T) {
	full := func(redact, scope string, paths ...string) Policy {
		return Policy{Redact: redact, HMAC: HashOptions{Scope: scope}, RedactPaths: paths, Before: "full", Changed: "values"}
	}
	for name, c := range map[string]struct {
		from, to Policy
		key      string
		flagged  bool
	}{
		"the same":             {full(HMAC, "", "a", "b"), full(HMAC, "object", "b", "a"), oneKey, false},
		"another mode":         {full(Mask, ""), full(HMAC, ""), oneKey, true},
		"another key":          {full(HMAC, ""), full(HMAC, ""), anotherKey, true},
		"another key, unused":  {full(Mask, ""), full(Mask, ""), anotherKey, false},
		"another scope":        {full(HMAC, ""), full(HMAC, "global"), oneKey, true},
		"another path":         {full(Mask, ""), full(Mask, "", "immutable"), oneKey, true},
		"shown before":         {full(None, ""), full(Mask, ""), oneKey, true},
		"shown from now on":    {full(Mask, ""), full(None, ""), oneKey, true},
		"labels are shown now": {full(Mask, ""), Policy{SecretMetadata: SecretMetadata{Labels: []string{"*"}}, Before: "full", Changed: "values"}, oneKey, true},
	} {
		s := newScene(t, c.from)
		s.shapeChanges(secretWith("hunter"))
		s.restartWith(c.to, c.key)
		first := s.shapeChanges(secretWith("hunter"))[0]
		if first.RedactionChanged != c.flagged || (first.Before == nil) != c.flagged || (first.Changed == nil) != c.flagged {
			t.Errorf("%s: redactionChanged %v, before %s, changed %s", name, first.RedactionChanged, first.Before, first.Changed)
		}
		second := s.shapeChanges(secretWith("hunter"))[0]
		if second.RedactionChanged || !bytes.Equal(second.Before, first.After) || string(second.Changed) != "[]" {
			t.Errorf("%s: then redactionChanged %v, before %s, changed %s", name, second.RedactionChanged, second.Before, second.Changed)
		}
	}
}

func TestRedactionChangeIsMarkedOnceEmitted(t *testing.T) {
	s := newScene(t, Policy{})
	s.shapeChanges(secretWith("hunter"))
	next := Policy{Redact: Drop, Filter: `change.class == "spec"`}
	s.restartWith(next, oneKey)
	quiet := secretWith("hunter")
	quiet.Class = event.ClassMetadata
	if len(s.shapeChanges(quiet)) != 0 {
		t.Fatal("the filter did not exclude it")
	}
	s.restartWith(next, oneKey) // not yet reported
	if got := s.shapeChanges(secretWith("hunter")); !got[0].RedactionChanged {
		t.Errorf("%+v", got[0])
	}
	s.restartWith(next, oneKey)
	if got := s.shapeChanges(secretWith("hunter")); got[0].RedactionChanged {
		t.Errorf("it is marked again: %+v", got[0])
	}
}

func TestUnaffectedResourcesAreNotMarked(t *testing.T) {
	s := newScene(t, Policy{})
	s.shapeChanges(updatedTo(deployment, newObject("1", "1")))
	s.restartWith(Policy{SecretMetadata: SecretMetadata{Labels: []string{"*"}}}, anotherKey)
	if got := s.shapeChanges(updatedTo(deployment, newObject("2", "1"))); got[0].RedactionChanged {
		t.Errorf("%+v", got[0])
	}
}

func TestNewObjectsAreNotMarked(t *testing.T) {
	s := newScene(t, Policy{})
	s.shapeChanges(secretWith("hunter"))
	s.restartWith(Policy{Redact: Drop}, oneKey)
	c := secretWith("hunter")
	c.Type, c.UID = event.Added, "v"
	if got := s.shapeChanges(c); got[0].RedactionChanged {
		t.Errorf("%+v", got[0])
	}
	if got := s.shapeChanges(secretWith("hunter")); got[0].RedactionChanged {
		t.Errorf("%+v", got[0])
	}
}

// FuzzOpenSummary checks that openSummary inverts sealSummary, and returns nothing for any other input.
func FuzzOpenSummary(f *testing.F) {
	f.Add("\x01digests", true)
	f.Add("\x11\x00\x00\x00\x02short", false)
	f.Add("\x12", true)
	f.Fuzz(func(t *testing.T, text string, conceals bool) {
		s, err := newSeal([]byte(oneKey), nil)
		if err != nil {
			t.Fatal(err)
		}
		var scratch []byte
		was := emission{redaction: 7, form: uint32(len(text)), filtered: conceals}
		sealed := s.sealSummary(&scratch, text, was, conceals)
		if got, as := s.openSummary(sealed); got != text || as != was || IsEmitted(sealed) != !conceals {
			t.Errorf("%q became %q, emitted as %+v, %t", text, got, as, IsEmitted(sealed))
		}
		if got, _ := s.openSummary(text); got != "" {
			t.Errorf("%q is opened as %q", text, got)
		}
	})
}
