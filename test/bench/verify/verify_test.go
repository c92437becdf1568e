package verify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/bench/corpus"
)

func history(t *testing.T) *corpus.Corpus {
	t.Helper()
	c, err := corpus.New(corpus.Options{Objects: 20, Changes: 400, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// trueRecord is the correct record of an entry.
func says(c *corpus.Corpus, e corpus.Entry) Record {
	return Record{Key: c.Key(e.Object), UID: c.UID(e.Object), RV: e.RV, Type: e.Type}
}

// judge adds true records in the order of the entries, as they are after arrange.
func judge(t *testing.T, arrange func([]Record) []Record) Result {
	t.Helper()
	c := history(t)
	var records []Record
	for _, e := range c.Entries() {
		records = append(records, says(c, e))
	}
	l := NewLedger(c)
	for _, r := range arrange(records) {
		l.Add(0, r)
	}
	return l.Result()
}

func TestWholeHistoryInOrderIsComplete(t *testing.T) {
	r := judge(t, func(all []Record) []Record { return all })
	if r != (Result{Records: 420}) || !r.Complete() {
		t.Errorf("%+v", r)
	}
}

func TestMissingRecordIsLost(t *testing.T) {
	r := judge(t, func(all []Record) []Record { return append(all[:200:200], all[201:]...) })
	if r != (Result{Records: 419, Lost: 1}) || r.Complete() {
		t.Errorf("%+v", r)
	}
}

func TestRepeatedRecordIsADuplicate(t *testing.T) {
	r := judge(t, func(all []Record) []Record { return append(all[:201:201], all[200:]...) })
	if r != (Result{Records: 421, Duplicates: 1}) || !r.Complete() {
		t.Errorf("%+v", r)
	}
}

func TestOlderRecordBehindANewerIsOutOfOrder(t *testing.T) {
	r := judge(t, func(all []Record) []Record {
		for i := range all {
			for j := i + 1; j < len(all); j++ {
				if all[j].Key == all[i].Key {
					all[i], all[j] = all[j], all[i]
					return all
				}
			}
		}
		t.Fatal("no object has two records")
		return nil
	})
	if r.OutOfOrder == 0 || r.Lost != 0 || r.Complete() {
		t.Errorf("%+v", r)
	}
}

func TestObjectInTwoPartitionsIsOutOfOrder(t *testing.T) {
	c := history(t)
	l := NewLedger(c)
	for i, e := range c.Entries() {
		l.Add(int32(i%2), says(c, e))
	}
	if r := l.Result(); r.OutOfOrder == 0 {
		t.Errorf("%+v", r)
	}
}

func TestRecordThatSaysSomethingElseIsWrong(t *testing.T) {
	for _, spoil := range []func(*Record){
		func(r *Record) { r.UID = "another" },
		func(r *Record) { r.Key += "x" },
		func(r *Record) { r.Type = corpus.Deleted },
		func(r *Record) { r.RV = 3 },
	} {
		r := judge(t, func(all []Record) []Record { spoil(&all[0]); return all })
		if r.Wrong != 1 || r.Lost != 1 || r.Complete() {
			t.Errorf("%+v", r)
		}
	}
}

const object = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7"}}`

func TestNativeRecordIsRead(t *testing.T) {
	head := `"resource":"pods","namespace":"n","name":"a","uid":"u","resourceVersion":"7"`
	for text, want := range map[string]corpus.Type{
		`{"type":"snapshot",` + head + `,"after":` + object + `}`: corpus.Added,
		`{"type":"updated",` + head + `,"after":` + object + `}`:  corpus.Modified,
		`{"type":"deleted",` + head + `,"before":` + object + `}`: corpus.Deleted,
	} {
		r, err := Native([]byte(text))
		if err != nil || r != (Record{Key: "pods/n/a", UID: "u", RV: 7, Type: want}) {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
	if r, err := Native([]byte(`{"type":"gap","resource":"pods"}`)); err != nil || !r.Control {
		t.Errorf("gap: %+v, %v", r, err)
	}
	for _, frame := range []string{"snapshot.begin", "snapshot.end"} {
		if r, err := Native([]byte(`{"type":"` + frame + `","resource":"pods"}`)); err != nil || r != (Record{Frame: true}) {
			t.Errorf("%s: %+v, %v", frame, r, err)
		}
	}
}

func TestNativeRecordMustFitItsBody(t *testing.T) {
	head := `"resource":"pods","namespace":"n","name":"a","uid":"u","resourceVersion":"8"`
	for _, text := range []string{
		`{"type":"updated",` + head + `,"after":` + object + `}`,
		`{"type":"updated",` + head + `}`,
		`{"type":"strange",` + head + `}`,
		`{"type":"updated"`,
	} {
		if r, err := Native([]byte(text)); err == nil {
			t.Errorf("%s: read as %+v", text, r)
		}
	}
}

func TestBaselineRecordIsRead(t *testing.T) {
	r, err := Baseline(fmt.Appendf(nil, `{"type":"updated","object":%s}`, object))
	if err != nil || r != (Record{Key: "pods/n/a", UID: "u", RV: 7, Type: corpus.Modified}) {
		t.Errorf("%+v, %v", r, err)
	}
	for _, text := range []string{
		`{"type":"moved","object":` + object + `}`,
		`{"type":"added","object":` + strings.Replace(object, "Pod", "Node", 1) + `}`,
	} {
		if r, err := Baseline([]byte(text)); err == nil {
			t.Errorf("%s: read as %+v", text, r)
		}
	}
}
