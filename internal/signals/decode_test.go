package signals

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// repeated returns a list in JSON of so many values.
func repeated(value string, n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(value+",", n), ",") + "]"
}

var longName = strings.Repeat("n", maxNameBytes)

// longObject is the longest key of an object.
var longObject = strings.Repeat("n", 63) + "/" + longName

func TestEachRequestIsTakenAsItIsWritten(t *testing.T) {
	for text, want := range map[string]Request{
		`{"signal":"pause","sink":"a"}`:                                                        {Kind: Pause, Sink: "a"},
		` { "sink" : "a" , "signal" : "pause" , "for" : "30m" } `:                              {Kind: Pause, Sink: "a", For: 30 * time.Minute},
		`{"signal":"pause","rule":"r","id":"8c1f0a52-3b7e-4a10-9c55-0242ac120002"}`:            {Kind: Pause, Rule: "r", ID: "8c1f0a52-3b7e-4a10-9c55-0242ac120002"},
		`{"signal":"resume","sink":"` + longName + `","id":"` + strings.Repeat("~", 64) + `"}`: {Kind: Resume, Sink: longName, ID: strings.Repeat("~", 64)},
		`{"signal":"snapshot","sink":"a","all":true,"namespace":"n"}`:                          {Kind: Snapshot, Sink: "a", All: true, Namespace: "n"},
		`{"signal":"snapshot","sink":"a","select":["x","y.z"]}`:                                {Kind: Snapshot, Sink: "a", Select: []string{"x", "y.z"}},
		`{"signal":"snapshot","sink":"a","select":["x"],"objects":["n/a b","\u00fc"]}`:         {Kind: Snapshot, Sink: "a", Select: []string{"x"}, Objects: []string{"n/a b", "ü"}},
		`{"signal":"replay","sink":"a","offset":18446744073709551615}`:                         {Kind: Replay, Sink: "a", Offset: 1<<64 - 1},
		`{"signal":"replay","sink":"a","from":"2026-11-26T13:00:00+01:00"}`:                    {Kind: Replay, Sink: "a", From: noon},
		`{"signal":"cancel","target":"x.1"}`:                                                   {Kind: Cancel, Target: "x.1"},
		`{"signal":"deadletters.retry","sink":"a","offsets":[1,2]}`:                            {Kind: RetryDeadLetters, Sink: "a", Offsets: []uint64{1, 2}},
		`{"signal":"deadletters.discard","sink":"a","all":true}`:                               {Kind: DiscardDeadLetters, Sink: "a", All: true},
	} {
		got, err := DecodeRequest([]byte(text))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		again, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := DecodeRequest(again); err != nil || !reflect.DeepEqual(back, want) || back.fingerprint() != got.fingerprint() {
			t.Errorf("%s: %+v, %v", again, back, err)
		}
	}
}

func TestTheLargestRequestFits(t *testing.T) {
	objects := make([]string, MaxEntries)
	for i := range objects {
		objects[i] = longObject
	}
	text, err := json.MarshalIndent(Request{
		ID: strings.Repeat("~", maxIDBytes), Kind: Snapshot, Sink: longName, Select: []string{longName}, Namespace: longName, Objects: objects,
	}, "", "        ")
	if err != nil || len(text) > maxBodyBytes {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	if _, err := DecodeRequest(text); err != nil {
		t.Error(err)
	}
}

func TestAnythingElseIsRefused(t *testing.T) {
	const discard, pause, snapshot, replay = `{"signal":"deadletters.discard","sink":"a",`, `{"signal":"pause","sink":"a",`,
		`{"signal":"snapshot","sink":"a",`, `{"signal":"replay","sink":"a",`
	for text, part := range map[string]string{
		// Members of another name, or of another kind.
		discard + `"offset":3}`:                                  `has no member "offset", did you mean "offsets"?`,
		discard + `"Offsets":[3]}`:                               `has no member "Offsets", did you mean "offsets"?`,
		pause + `"duration":"30m"}`:                              `has no member "duration"; it has: sink, rule, for, signal, id`,
		pause + `"select":["pods"]}`:                             `has no member "select"`,
		snapshot + `"object":["n/a"],"select":["pods"]}`:         `has no member "object", did you mean "objects"?`,
		snapshot + `"for":"30m","all":true}`:                     `has no member "for"`,
		`{"signal":"resume","sink":"a","for":"30m"}`:             `has no member "for"`,
		`{"signal":"cancel","target":"x","sink":"a"}`:            `has no member "sink"`,
		`{"signal":"deadletters.retry","rule":"a","all":true}`:   `has no member "rule"`,
		pause + `"record":{"topic":"t"}}`:                        `has no member "record"`,
		`{"signal":"puase","sink":"a"}`:                          `no signal "puase", did you mean "pause"?`,
		`{"signal":"","sink":"a"}`:                               `no signal ""`,
		`{"signal":"PAUSE","sink":"a"}`:                          `did you mean "pause"?`,
		`{"Signal":"pause","sink":"a"}`:                          `did you mean "signal"?`,
		`{"sink":"a"}`:                                           `"signal" is missing`,
		`{"signal":["pause"],"sink":"a"}`:                        `no signal ["pause"]`,
		pause + `"sink":"b"}`:                                    `has the member "sink" twice`,
		pause + `"\u0073ink":"b"}`:                               `has the member "sink" twice`,
		`{` + strings.Repeat(`"x":1,"y":2,"z":3,`, 5) + `"q":1}`: "twice",
		`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"n":1}`: "more members than there are",

		// Nothing is named, or two things are.
		`{"signal":"deadletters.discard","sink":"a"}`:        `it names nothing: "offsets" is missing, or "all": true`,
		`{"signal":"snapshot","sink":"a"}`:                   `it names nothing: "select" is missing, or "all": true`,
		snapshot + `"namespace":"n"}`:                        `it names nothing`,
		discard + `"offsets":[]}`:                            `an empty one names nothing`,
		discard + `"offsets":null}`:                          `"offsets" is null`,
		discard + `"all":false}`:                             `"all" is false; expected true`,
		discard + `"all":"true"}`:                            `expected true`,
		discard + `"all":true,"offsets":[1]}`:                `"offsets" and "all" exclude each other`,
		`{"signal":"replay","sink":"a"}`:                     `"offset" or "from" is missing`,
		replay + `"offset":1,"from":"2026-11-26T12:00:00Z"}`: `exclude each other`,
		`{"signal":"pause"}`:                                 `"sink" or "rule" is missing`,
		pause + `"rule":"r"}`:                                `"sink" and "rule" exclude each other`,
		`{"signal":"replay","offset":1}`:                     `"sink" is missing`,
		`{"signal":"cancel"}`:                                `"target" is missing`,
		`{"signal":"pause","sink":""}`:                       `"sink" is ""`,
		`{"signal":"pause","sink":null}`:                     `"sink" is null`,

		// Values of another form.
		pause + `"for":30}`:                                            `"for" is 30; expected a duration above 0, such as "30m"`,
		pause + `"for":"30"}`:                                          `expected a duration`,
		pause + `"for":"0s"}`:                                          `expected a duration`,
		pause + `"for":"-1m"}`:                                         `expected a duration`,
		pause + `"for":null}`:                                          `expected a duration`,
		replay + `"offset":0}`:                                         `from 1 on`,
		replay + `"offset":1.5}`:                                       `from 1 on`,
		replay + `"offset":"1"}`:                                       `from 1 on`,
		replay + `"offset":18446744073709551616}`:                      `from 1 on`,
		replay + `"from":"yesterday"}`:                                 `expected a time`,
		replay + `"from":"0001-01-01T00:00:00Z"}`:                      `expected a time`,
		replay + `"from":1}`:                                           `expected a time`,
		discard + `"offsets":3}`:                                       `expected a list`,
		discard + `"offsets":["3"]}`:                                   `number 1 is "3"`,
		discard + `"offsets":[3,null]}`:                                `number 2 is null`,
		snapshot + `"select":"pods"}`:                                  `expected a list`,
		snapshot + `"select":["pods",null]}`:                           `number 2 is null`,
		snapshot + `"select":["pods","a b"]}`:                          `number 2 is "a b"`,
		snapshot + `"select":["x"],"objects":["a/b/c"]}`:               `number 1 is "a/b/c"`,
		snapshot + `"select":["x"],"objects":["a\u0007"]}`:             `an object`,
		snapshot + `"select":["x"],"objects":["\ud800"]}`:              `an object`,
		`{"signal":"pause","sink":"a\u001b[2J"}`:                       `expected a name`,
		`{"signal":"pause","sink":"a ended=1"}`:                        `expected a name`,
		`{"signal":"pause","sink":{"name":"a"}}`:                       `expected a name`,
		`{"signal":"pause","sink":"n` + longName + `"}`:                `a name of at most 253 bytes`,
		discard + `"offsets":` + repeated("1", MaxEntries+1) + `}`:     `a list of 1 to 200`,
		snapshot + `"select":["x"],"objects":["n` + longObject + `"]}`: `an object`,
		pause + `"id":""}`:                                             `1 to 64 printable characters`,
		pause + `"id":"a b"}`:                                          `1 to 64 printable characters`,
		pause + `"id":"ü"}`:                                            `1 to 64 printable characters`,
		pause + `"id":"` + strings.Repeat("x", 65) + `"}`:              `1 to 64 printable characters`,
		pause + `"id":null}`:                                           `1 to 64 printable characters`,

		// No JSON object, or more than one.
		``:                                 "this is no signal",
		`null`:                             "it is no JSON object",
		`[{"signal":"pause","sink":"a"}]`:  "it is no JSON object",
		`{"signal":"pause","sink":"a"`:     "this is no signal",
		`{"signal":"pause","sink":"a"} {}`: "after top-level value",
		"{\"signal\":\"pause\",\"sink\":\"a\xff\"}": "it is not in UTF-8",
		strings.Repeat("[", 40<<10):                 "exceeded max depth",
	} {
		r, err := DecodeRequest([]byte(text))
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), part) || !reflect.DeepEqual(r, Request{}) {
			t.Errorf("%.200s: %+v, %v; not %s", text, r, err, part)
		}
	}
}

func TestARefusalIsShort(t *testing.T) {
	for _, text := range []string{
		`{"` + strings.Repeat("x", maxBodyBytes-6) + `":1}`, `{"signal":"` + strings.Repeat("ü", 1000) + `"}`,
		`{"signal":"pause","sink":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`,
		`{"signal":"pause","sink":"` + strings.Repeat(`\u0007`, 1000) + `"}`,
	} {
		if _, err := DecodeRequest([]byte(text)); err == nil || len(err.Error()) > 2*maxRefusal || !isPrintable(err.Error()) {
			t.Errorf("%.40s: %v", text, err)
		}
	}
	s := Request{Kind: Snapshot, Sink: "a", Select: []string{"x"}, Objects: []string{"y"}}.New(noon)
	refused := s.End(Refused, noon, 0, "a\x1b[2J"+strings.Repeat("ü", 300)+"\xff")
	if len(refused.Result) > maxRefusal || len(refused.Result) < maxRefusal-4 || !utf8.ValidString(refused.Result) || !isPrintable(refused.Result) ||
		refused.Select != nil || refused.Objects != nil {
		t.Errorf("%d bytes: %+v", len(refused.Result), refused)
	}
	if got := s.End(Done, noon, 0, "short").Result; got != "short" {
		t.Errorf("%q", got)
	}
}

// FuzzDecodeRequest checks that a request is either refused with a short text, or means the same when it is written again.
func FuzzDecodeRequest(f *testing.F) {
	for _, seed := range []string{
		`{"signal":"pause","sink":"a","for":"30m","id":"x"}`, `{"signal":"snapshot","sink":"a","select":["pods"],"objects":["n/a"]}`,
		`{"signal":"replay","sink":"a","from":"2026-11-26T13:00:00+01:00"}`, `{"signal":"deadletters.discard","sink":"a","offsets":[1,2]}`,
		`{"signal":"cancel","target":"x"}`, `{"Signal":"pause"}`, `[`, `{"signal":"resume","rule":"\u00fc"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := DecodeRequest(text)
		if err != nil {
			if reason := err.Error(); len(reason) > 3*maxRefusal || !utf8.ValidString(reason) {
				t.Fatalf("the reason is %q", reason)
			}
			return
		}
		if !json.Valid(text) {
			t.Fatal("it is no JSON")
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := DecodeRequest(again); err != nil || fmt.Sprintf("%+v", back) != fmt.Sprintf("%+v", r) {
			t.Fatalf("%s is %+v, and again %+v, %v", text, r, back, err)
		}
	})
}
