package rawjson

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// seeds are values, both valid and malformed in typical ways.
var seeds = []string{
	`{}`, `[]`, `""`, `0`, `-1.5e+3`, `true`, `null`, `{"a":[1,{"b":"c"}],"d":null}`, ` {"a" : 1 , "b" : [ ] } `,
	`"\u00e9\n\"\\"`, `{"a":1,}`, `[1,]`, `[1 2]`, `{"a"}`, `{"a":}`, `{1:2}`, `[}`, `{]`, `"\x"`, `"\u12g4"`, "\"\n\"", `01`, `1.`, `-`, `tru`,
	`"0123456`, `"01234567"`, `"012345678\"`, strings.Repeat("[", 70) + strings.Repeat("]", 70), strings.Repeat("[", 600) + strings.Repeat("]", 600),
}

// FuzzSkipValueAcceptsOnlyValidJSON compares SkipValue with encoding/json: both must accept the same texts.
func FuzzSkipValueAcceptsOnlyValidJSON(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		end := SkipValue(b, SkipSpace(b, 0), 0)
		whole := end >= 0 && SkipSpace(b, end) == len(b)
		if valid := json.Valid(b); whole != valid && !tooDeep(b) {
			t.Errorf("%q: SkipValue ends at %d of %d, valid: %v", b, end, len(b), valid)
		}
		if end < 0 && FailAt(end) > len(b) {
			t.Errorf("%q: fails at %d of %d", b, FailAt(end), len(b))
		}
	})
}

// FuzzSkipTrustedValueAgreesWithSkipValue: SkipTrustedValue must end at the same index as SkipValue for every valid text.
func FuzzSkipTrustedValueAgreesWithSkipValue(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		from := SkipSpace(b, 0)
		checked, passed := SkipValue(b, from, 0), SkipTrustedValue(b, from)
		if checked >= 0 && SkipSpace(b, checked) == len(b) && passed != checked {
			t.Errorf("%q: SkipValue ends at %d, SkipTrustedValue at %d", b, checked, passed)
		}
		if passed < 0 && FailAt(passed) > len(b) {
			t.Errorf("%q: fails at %d of %d", b, FailAt(passed), len(b))
		}
	})
}

func tooDeep(b []byte) bool {
	return bytes.Count(b, []byte("["))+bytes.Count(b, []byte("{")) > MaxDepth
}

func TestMembersReportTheirOffsets(t *testing.T) {
	text := []byte(` { "a" : 1 , "b\u0063" : [ 2 , {} ] } `)
	var got []string
	m := EnterObject(text, 1)
	for m.Next() {
		start := m.I
		if string(m.Key) == "bc" {
			e := EnterArray(text, m.I)
			for e.Next() {
				from := e.I
				e.I = SkipValue(text, from, 1)
				got = append(got, "element "+string(text[from:e.I]))
			}
			m.I = e.I
		} else {
			m.I = SkipValue(text, m.I, 1)
		}
		got = append(got, string(m.Key)+" "+string(text[m.Start:m.I])+" value "+string(text[start:m.I]))
		if (m.Comma >= 0) != (string(m.Key) == "bc") {
			t.Errorf("%s: comma before it at %d", m.Key, m.Comma)
		}
	}
	want := []string{`a "a" : 1 value 1`, "element 2", "element {}", `bc "b\u0063" : [ 2 , {} ] value [ 2 , {} ]`}
	if !slices.Equal(got, want) || m.I != len(text)-1 {
		t.Errorf("walked to %d of %d:\n%q\nwant\n%q", m.I, len(text), got, want)
	}
}

func TestWalkEndsAtMalformedText(t *testing.T) {
	for text, at := range map[string]int{
		`{"a":1 "b":2}`: 7, `{"a" 1}`: 5, `{,}`: 1, `{"a":1,}`: 7, `{"a`: 3, `{`: 1, `[`: 0, ``: 0,
	} {
		m := EnterObject([]byte(text), 0)
		for m.Next() {
			m.I = SkipTrustedValue([]byte(text), m.I)
		}
		if m.I >= 0 || FailAt(m.I) != at {
			t.Errorf("%s: ends with %d, want a failure at %d", text, m.I, at)
		}
	}
}
