package attribution

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testTime(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }

// transcript plays a transcript to a matcher. A line is a command with arguments of the form key=value. Lines after ">" are
// the expected resolutions:
//
//	change TYPE uid=… rv=… prev=… at=MS [marks]
//	change … [deleting] [name=NAME [bound] [evicted] [over] [created=MS]]   of a pod of that name
//	event [name=NAME] [uid=…] user=… [as=…] verb=… code=… from=MS to=MS [uid=… rv=… deleting held grace] [del=UID] [ref=RV] [notes=RV] [same=RV] [noted=UID] [item=UID:RV[:held]] [origin=…] [arrived=MS] [truncated] [bare]
//	decide MS
//	skew MS                                        sets Limits.Skew
//
// An update, a patch or a delete has the annotations of the admission policy, as from a version long ago, unless it is bare.
type transcript struct {
	matcher *Matcher
	offset  uint64
	n       int
}

func newTranscript() *transcript {
	return &transcript{matcher: NewMatcher(Limits{Settle: time.Second, Window: 10 * time.Second, Bytes: 1 << 20})}
}

type arguments map[string]string

func parseArguments(words []string) arguments {
	a := arguments{}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		if value == "" {
			value = "true"
		}
		a[key] = value
	}
	return a
}

func (a arguments) milliseconds(key string) int {
	n, err := strconv.Atoi(a[key])
	if a[key] != "" && err != nil {
		panic(err)
	}
	return n
}

func (s *transcript) playLine(line string) []string {
	words := strings.Fields(line)
	switch words[0] {
	case "change":
		a := parseArguments(words[2:])
		s.offset++
		s.matcher.AddChange(Change{Offset: s.offset, Type: event.Type(words[1]), UID: a["uid"], Version: a["rv"], Previous: a["prev"],
			Marks: a["marks"] != "", Observed: testTime(a.milliseconds("at")), Resource: resourceOf(a), Name: a["name"],
			objectState: objectState{bound: a["bound"] != "", evicted: a["evicted"] != "", deletable: a["over"] != "",
				deleting: a["marks"] != "" || a["deleting"] != "", created: createdAt(a)}, hasState: true})
	case "skew":
		ms, err := strconv.Atoi(words[1])
		if err != nil {
			panic(err)
		}
		s.matcher.limits.Skew = time.Duration(ms) * time.Millisecond
	case "event":
		s.matcher.AddRequest(s.newRequest(parseArguments(words[1:])))
	case "decide":
		ms, err := strconv.Atoi(words[1])
		if err != nil {
			panic(err)
		}
		s.matcher.Resolve(testTime(ms))
	default:
		panic(line)
	}
	done := s.matcher.TakeFindings().Resolved
	var lines []string
	for _, c := range done {
		lines = append(lines, formatResolution(c))
	}
	return lines
}

// createdAt is when the object certainly existed by the clock of the API server that created it.
func createdAt(a arguments) time.Time {
	if a["created"] == "" {
		return time.Time{}
	}
	return testTime(a.milliseconds("created"))
}

// resourceOf is pods if a name is given, config maps otherwise.
func resourceOf(a arguments) event.Resource {
	if a["name"] != "" {
		return event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
	}
	return event.Resource{Version: "v1", Resource: "configmaps", Kind: "ConfigMap"}
}

func formatResolution(c Resolution) string {
	line := fmt.Sprintf("%s %s@%s", c.Type, c.UID, c.Version)
	if c.By == nil {
		return line + " unresolved: " + string(c.Reason)
	}
	line += " by " + strings.ReplaceAll(c.By.Actor(), "\x00", " as ") + " (" + c.By.Verb + ")"
	if c.RequestedBy != nil {
		line += " requested by " + c.RequestedBy.User
	}
	return line
}

func (s *transcript) newRequest(a arguments) *Request {
	s.n++
	r := &Request{Event: audit.Event{
		ID: strconv.Itoa(s.n), Stage: "ResponseComplete", Verb: a["verb"], Code: a.milliseconds("code"), User: a["user"], Resource: resourceOf(a).Resource,
		Name: a["name"], RefUID: a["refuid"], Truncated: a["truncated"] != "",
		Subresource: a["sub"], Received: audit.Time(testTime(a.milliseconds("from")).UnixNano()), Done: audit.Time(testTime(a.milliseconds("to")).UnixNano()),
		Outcome: map[bool]audit.Outcome{false: audit.Stored, true: audit.NotStored}[a["dry"] != ""], ResourceVersion: a["ref"], DeletedUID: a["del"], NotedUID: a["noted"], Replaces: a["notes"], Unchanged: a["same"],
		Answer: audit.Object{UID: a["uid"], ResourceVersion: a["rv"], Deleting: a["deleting"] != "", Held: a["held"] != "", Grace: a["grace"] != ""},
	}, Origin: cmp.Or(a["origin"], "api"), Arrived: testTime(cmp.Or(a.milliseconds("arrived"), a.milliseconds("to")))}
	if r.Verb != "create" && a["bare"] == "" {
		r.Replaces = cmp.Or(r.Replaces, "1")
	}
	if a["as"] != "" {
		r.Impersonated = &audit.User{Name: a["as"]}
	}
	if id := a["id"]; id != "" {
		r.ID = id
	}
	if r.Code == 0 {
		r.Code = 200
	}
	for _, item := range strings.Split(a["items"], ",") {
		if parts := strings.Split(item, ":"); len(parts) > 1 {
			r.Items = append(r.Items, audit.Object{UID: parts[0], ResourceVersion: parts[1], Held: len(parts) > 2})
		}
	}
	return r
}

func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var want, got []string
			s := newTranscript()
			for _, line := range strings.Split(string(text), "\n") {
				switch {
				case strings.HasPrefix(line, "# "), line == "":
				case strings.HasPrefix(line, "> "):
					want = append(want, line[2:])
				default:
					got = append(got, s.playLine(line)...)
				}
			}
			if strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("resolved\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}
