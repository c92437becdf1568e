package format

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// headerVariants are the headers that buses store with c: all of them, as Kafka does, and the minimum, as in NATS.
func headerVariants(f Format, c *event.Change) map[string]func(string) string {
	facts := map[string]string{}
	if f.NeedsFactsHeader(c) {
		facts[HeaderChange] = string(AppendFacts(nil, c))
	}
	whole := map[string]string{HeaderChange: facts[HeaderChange], HeaderKey: c.Key()}
	if f != CloudEvents && f != CloudEventsStructured {
		whole[HeaderID], whole[HeaderType], whole[HeaderCluster] = c.ID(), string(c.Type), c.Cluster
	}
	all := map[string]func(string) string{"all": func(name string) string { return whole[name] }}
	if f != Upsert { // which always has headers
		all["least"] = func(name string) string { return facts[name] }
	}
	return all
}

func TestEveryFormatIdentifiesItsChange(t *testing.T) {
	for _, f := range All() {
		for _, s := range append(sampleChanges(), variantChanges()...) {
			if !f.CanRepresent(&s.change) {
				continue
			}
			for how, beside := range headerVariants(f, &s.change) {
				got, ours := ReadEmitted(f.AppendValue(nil, &s.change), beside)
				if want := s.change.EmittedRecord(); ours != (s.change.DeadLetter == nil) || ours && got != want {
					t.Errorf("%v, %s, headers %s: got %t %+v\nwant %+v", f, s.name, how, ours, got, want)
				}
			}
		}
	}
}

// TestEveryFormatReturnsItsObject: the state of a table can be rebuilt from stored records of every format, and control
// records have all of their facts.
func TestEveryFormatReturnsItsObject(t *testing.T) {
	for _, f := range All() {
		for _, s := range append(sampleChanges(), variantChanges()...) {
			c := &s.change
			if !f.CanRepresent(c) || c.DeadLetter != nil {
				continue
			}
			for how, beside := range headerVariants(f, c) {
				got, _ := ReadStored(f.AppendValue(nil, c), beside)
				rows := (f == Upsert || f == Debezium) && !c.Type.IsControl() && c.Type != event.Attributed
				want := ""
				if rows && c.Type != event.Deleted {
					want = string(c.After)
				}
				if got.Cluster != c.Cluster || rows != (got.Native == nil) || len(c.Omitted) == 0 && string(got.After) != want {
					t.Errorf("%v, %s, headers %s: native %q, after %q\nwant %q", f, s.name, how, got.Native, got.After, want)
				}
				if !rows && (got.Type != c.Type || !strings.HasPrefix(string(got.Native), `{"id":`)) {
					t.Errorf("%v, %s, headers %s: %q", f, s.name, how, got.Native)
				}
			}
		}
	}
}

// TestTombstoneIdentifiesItsDelete covers the tombstones of Debezium.
func TestTombstoneIdentifiesItsDelete(t *testing.T) {
	c := sampleChange()
	c.Type, c.After = event.Deleted, nil
	got, ours := ReadEmitted(nil, headerVariants(Debezium, c)["all"])
	if !ours || got != c.EmittedRecord() {
		t.Errorf("got %t %+v", ours, got)
	}
}

func TestForeignRecordsAreNotOurs(t *testing.T) {
	nothing := func(string) string { return "" }
	c := sampleChange()
	headers := func(change map[string]string) func(string) string {
		return func(name string) string {
			if v, ok := change[name]; ok {
				return v
			}
			return headerVariants(JSON, c)["all"](name)
		}
	}
	another := strings.Replace(string(AppendJSON(nil, c)), `"uid":"`, `"uid":"x`, 1)
	for what, r := range map[string]struct {
		value  string
		beside func(string) string
	}{
		"nothing":               {"", nothing},
		"text":                  {"hello", nothing},
		"an order":              {`{"id":"4","type":"created","amount":3}`, nothing},
		"an event of others":    {`{"specversion":"1.0","id":"4","type":"x","source":"/a","data":{"id":"4"}}`, nothing},
		"an envelope of others": {`{"before":null,"after":{"id":4},"source":{"connector":"postgresql","name":"x","table":"t"},"op":"c"}`, nothing},
		"facts of two changes":  {another, nothing},
		"cut short":             {string(AppendJSON(nil, c))[:200], nothing},
		"headers of two":        {"", headers(map[string]string{HeaderType: "deleted"})},
		"a key of others":       {"", headers(map[string]string{HeaderKey: "4711"})},
		"no ID":                 {"", headers(map[string]string{HeaderID: ""})},
	} {
		if got, ours := ReadEmitted([]byte(r.value), r.beside); ours {
			t.Errorf("%s was identified as %+v", what, got)
		}
	}
}

// TestRowIsNotTakenForAnotherChange uses an object that has the members of a change: the headers take precedence.
func TestRowIsNotTakenForAnotherChange(t *testing.T) {
	victim, row := sampleChange(), sampleChange()
	victim.Name, victim.UID = "victim", "v"
	row.After = AppendJSON(nil, victim)
	got, ours := ReadEmitted(Upsert.AppendValue(nil, row), headerVariants(Upsert, row)["all"])
	if !ours || got != row.EmittedRecord() {
		t.Errorf("got %t %+v", ours, got)
	}
}

func FuzzReadEmitted(f *testing.F) {
	for _, format := range All() {
		for _, s := range sampleChanges() {
			all := headerVariants(format, &s.change)["all"]
			f.Add(format.AppendValue(nil, &s.change), all(HeaderChange), all(HeaderID), all(HeaderType), all(HeaderCluster), all(HeaderKey))
		}
	}
	f.Fuzz(func(t *testing.T, value []byte, change, id, kind, cluster, key string) {
		beside := map[string]string{HeaderChange: change, HeaderID: id, HeaderType: kind, HeaderCluster: cluster, HeaderKey: key}
		e, ours := ReadEmitted(value, func(name string) string { return beside[name] })
		if ours && (e.ID == "" || e.Type == "" || e.Resource.Resource == "" || !e.Type.IsControl() && e.Key == "") {
			t.Errorf("%q was identified as %+v", value, e)
		}
	})
}
