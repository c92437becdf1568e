package admin

import (
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// pageAfter returns a page of a sink that has delivered so many changes in each of the last samples.
func pageAfter(t *testing.T, path string, delivered ...uint64) string {
	t.Helper()
	sum, at := uint64(0), time.Now().Add(-time.Duration(len(delivered))*sampleEvery)
	s := sample()
	var f *frame
	for _, n := range append([]uint64{0}, delivered...) {
		sum += n
		s.Sinks[0].Delivered = sum
		f = f.nextFrame(s, at)
		at = at.Add(sampleEvery)
	}
	server := New(Options{Snapshot: func() Snapshot { return s }})
	server.latest.Store(f)
	w := httptest.NewRecorder()
	server.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Body.String()
}

var figure = regexp.MustCompile(`(?s)<span class="spark">.*?</svg>.*?</span>`)

// TestASparklineHasItsScaleAndPeakAsText, without JavaScript and for a screen reader too.
func TestASparklineHasItsScaleAndPeakAsText(t *testing.T) {
	for _, path := range []string{"/", "/sink?name=main"} {
		found := figure.FindAllString(pageAfter(t, path, 20, 1180, 40), -1)
		if len(found) != 1 { // nothing else moves
			t.Fatalf("%s: %d sparklines: %q", path, len(found), found)
		}
		for _, want := range []string{`role="img"`, `aria-label="peak 590/s, newest 20/s, scale 0 to 1,000/s, last 6 s"`,
			`points="115.9,22.8 118.0,10.0 120.0,22.6"`, `>peak 590/s<`, `>0 to 1,000/s, last 6 s<`} {
			if !strings.Contains(found[0], want) {
				t.Errorf("%s: no %s in %s", path, want, found[0])
			}
		}
	}
}

// TestASparklineKeepsItsScale while rates vary, so that its shape does not jump with each sample.
func TestASparklineKeepsItsScale(t *testing.T) {
	for peak, want := range map[float64]float64{0.1: 0.1, 0.3: 0.5, 1: 1, 1.5: 2, 412: 500, 590: 1000, 1000: 1000, 1001: 2000, 4e6: 5e6} {
		if got := newSparkline([]float64{peak}).Top; fmt.Sprintf("%.4g", got) != fmt.Sprintf("%.4g", want) {
			t.Errorf("a peak of %v has a scale to %v, want %v", peak, got, want)
		}
	}
	if s := newSparkline(make([]float64, 10)); s != nil {
		t.Errorf("nothing happened, and it is drawn as %+v", s)
	}
}

var (
	titleOf = regexp.MustCompile(`<title>(.*)</title>`)
	iconOf  = regexp.MustCompile(`<link rel="icon" id="icon" href="data:image/svg&#43;xml,([^"]*)" data-lost="[^"]+">`)
	stateOf = regexp.MustCompile(`(?s)<p id="state" class="hidden" role="status" data-mark="(\w+)" data-title="[^"]+" data-icon="[^"]+">(.*?)</p>`)
)

// TestTitleIconAndLiveRegionShowTheState on every page: a tab in the background, and a screen reader, learn of a change.
func TestTitleIconAndLiveRegionShowTheState(t *testing.T) {
	bad := sample()
	bad.Conditions = append(bad.Conditions, statusOf("sink/main", "", condition.Problem{Code: condition.SinkUnreachable, Cause: "no broker answers"}))
	warned := sample()
	warned.Conditions = append(warned.Conditions, statusOf("resource", "pods", condition.Problem{Code: condition.ResourceForbidden, Cause: "forbidden"}))
	icons := map[string]bool{}
	for _, c := range []struct {
		name, mark, title, state string
		of                       Snapshot
	}{
		{"good", "good", "✓ Ready", "Ready", sample()},
		{"warned", "wait", "! Ready, with warnings", "Ready, with warnings: resource/pods ResourceForbidden", warned},
		{"bad", "bad", "✗ Not ready", "Not ready: sink/main SinkUnreachable", bad},
	} {
		for path, name := range map[string]string{"/": "", "/resource?name=pods": " · pods", "/sink?name=main": " · main"} {
			body := get(t, c.of, path).Body.String()
			if got := titleOf.FindStringSubmatch(body); got == nil || got[1] != c.title+name+" · kubecdc" {
				t.Errorf("%s %s: the title is %q", c.name, path, got)
			}
			icon, state := iconOf.FindStringSubmatch(body), stateOf.FindStringSubmatch(body)
			if state == nil || state[1] != c.mark || state[2] != c.state {
				t.Fatalf("%s %s: the live region is %q", c.name, path, state)
			}
			if icon == nil {
				t.Fatalf("%s %s: no icon in %s", c.name, path, body)
			}
			icons[icon[1]] = true
		}
	}
	if len(icons) != 3 {
		t.Errorf("three states have %d icons: %v", len(icons), icons)
	}
	for icon := range icons {
		text, err := url.PathUnescape(html.UnescapeString(icon))
		if err != nil {
			t.Fatal(err)
		}
		for d := xml.NewDecoder(strings.NewReader(text)); err == nil; {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s is no image: %v", text, err)
		}
	}
}
