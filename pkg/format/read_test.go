package format

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// besides are the ways in which buses tell something beside the value of c: all that Kafka does, and as little as NATS can.
func besides(f Format, c *event.Change) map[string]func(string) string {
	facts := map[string]string{}
	if f.FactsBeside(c) {
		facts[BesideChange] = string(AppendFacts(nil, c))
	}
	whole := map[string]string{BesideChange: facts[BesideChange], BesideKey: c.Key()}
	if f != CloudEvents && f != CloudEventsStructured {
		whole[BesideID], whole[BesideType], whole[BesideCluster] = c.ID(), string(c.Type), c.Cluster
	}
	all := map[string]func(string) string{"all": func(name string) string { return whole[name] }}
	if f != Upsert { // which has headers always
		all["least"] = func(name string) string { return facts[name] }
	}
	return all
}

func TestEveryFormatTellsWhichChangeItWas(t *testing.T) {
	for _, f := range All() {
		for _, s := range append(samples(), variants()...) {
			if !f.HasPlaceFor(&s.change) {
				continue
			}
			for how, beside := range besides(f, &s.change) {
				got, ours := ReadEmitted(f.AppendValue(nil, &s.change), beside)
				if want := s.change.Emitted(); ours != (s.change.DeadLetter == nil) || ours && got != want {
					t.Errorf("%v, %s, %s beside: got %t %+v\nwant %+v", f, s.name, how, ours, got, want)
				}
			}
		}
	}
}

// TestARecordWithoutAValueIsThatOfItsDelete is about the tombstones of Debezium.
func TestARecordWithoutAValueIsThatOfItsDelete(t *testing.T) {
	c := sample()
	c.Type, c.After = event.Deleted, nil
	got, ours := ReadEmitted(nil, besides(Debezium, c)["all"])
	if !ours || got != c.Emitted() {
		t.Errorf("got %t %+v", ours, got)
	}
}

func TestWhatNoExporterWroteIsNotOurs(t *testing.T) {
	nothing := func(string) string { return "" }
	c := sample()
	headers := func(change map[string]string) func(string) string {
		return func(name string) string {
			if v, ok := change[name]; ok {
				return v
			}
			return besides(JSON, c)["all"](name)
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
		"headers of two":        {"", headers(map[string]string{BesideType: "deleted"})},
		"a key of others":       {"", headers(map[string]string{BesideKey: "4711"})},
		"no ID":                 {"", headers(map[string]string{BesideID: ""})},
	} {
		if got, ours := ReadEmitted([]byte(r.value), r.beside); ours {
			t.Errorf("%s is taken for %+v", what, got)
		}
	}
}

// TestARowDoesNotPassForAnotherChange gives an object the members of a change: what stands beside it counts.
func TestARowDoesNotPassForAnotherChange(t *testing.T) {
	victim, row := sample(), sample()
	victim.Name, victim.UID = "victim", "v"
	row.After = AppendJSON(nil, victim)
	got, ours := ReadEmitted(Upsert.AppendValue(nil, row), besides(Upsert, row)["all"])
	if !ours || got != row.Emitted() {
		t.Errorf("got %t %+v", ours, got)
	}
}

func FuzzReadEmitted(f *testing.F) {
	for _, format := range All() {
		for _, s := range samples() {
			all := besides(format, &s.change)["all"]
			f.Add(format.AppendValue(nil, &s.change), all(BesideChange), all(BesideID), all(BesideType), all(BesideCluster), all(BesideKey))
		}
	}
	f.Fuzz(func(t *testing.T, value []byte, change, id, kind, cluster, key string) {
		beside := map[string]string{BesideChange: change, BesideID: id, BesideType: kind, BesideCluster: cluster, BesideKey: key}
		e, ours := ReadEmitted(value, func(name string) string { return beside[name] })
		if ours && (e.ID == "" || e.Type == "" || e.Resource.Resource == "" || !e.Type.Control() && e.Key == "") {
			t.Errorf("%q is taken for %+v", value, e)
		}
	})
}
