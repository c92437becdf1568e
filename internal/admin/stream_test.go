package admin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// serve runs a server until the test ends.
func serve(t *testing.T, options Options) *Server {
	t.Helper()
	options.Listen = "127.0.0.1:0"
	s := New(options)
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *Server) note(text string) {
	write := func(b []byte) []byte { return append(b, text...) }
	s.ObserveChange(write, write)
}

// lines reads a stream until it has a line with a text, and returns that.
func lines(t *testing.T, r *bufio.Reader, until string) string {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("no line with %q: %v", until, err)
		}
		if strings.Contains(line, until) {
			return line
		}
	}
}

// open asks a server for a stream.
func open(t *testing.T, s *Server, path string) *bufio.Reader {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		answer.Body.Close()
		client.CloseIdleConnections()
	})
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		t.Fatalf("%s: %s: %s", path, answer.Status, text)
	}
	return bufio.NewReader(answer.Body)
}

func TestViewersSeeChangesAsTheyCome(t *testing.T) {
	s := serve(t, Options{Snapshot: sample})
	s.note(`{"name":"before"}`)
	all, page := open(t, s, "/changes"), open(t, s, "/events?view=overview")
	lines(t, all, ": kubecdc")
	s.note(`{"name":"after"}`)
	if line := lines(t, all, "data: "); line != "data: {\"name\":\"after\"}\n" {
		t.Errorf("a program is sent %q first", line)
	}
	lines(t, page, `{"missed":0,"changes":[{"name":"before"}`)
}

func TestOverwrittenChangesAreCounted(t *testing.T) {
	var c changeRing
	add := func(n int) {
		write := func(b []byte) []byte { return fmt.Append(b, n) }
		c.appendChange(write, write)
	}
	for n := range 3 {
		add(n)
	}
	facts, missed, last := c.newestAfter(1, 10)
	if len(facts) != 2 || string(facts[0]) != "1" || missed != 0 || last != 3 {
		t.Errorf("%q, %d missed, %d", facts, missed, last)
	}
	for n := range 2 * changesKept {
		add(n)
	}
	facts, missed, last = c.newestAfter(last, changesKept)
	if len(facts) != changesKept || missed != changesKept || string(facts[len(facts)-1]) != fmt.Sprint(2*changesKept-1) {
		t.Errorf("%d facts to %q, %d missed", len(facts), facts[len(facts)-1], missed)
	}
	if facts, missed, _ = c.newestAfter(last, 10); len(facts) != 0 || missed != 0 {
		t.Errorf("with nothing new: %q, %d missed", facts, missed)
	}
}

func TestLongFactsAreCut(t *testing.T) {
	var c changeRing
	c.appendChange(func(b []byte) []byte { return append(b, make([]byte, changeMaxBytes+1)...) }, func(b []byte) []byte { return append(b, "short"...) })
	if facts, _, _ := c.newestAfter(0, 1); string(facts[0]) != "short" {
		t.Errorf("%d bytes are kept", len(facts[0]))
	}
}

func TestViewersAreBounded(t *testing.T) {
	s := serve(t, Options{Snapshot: sample})
	for range maxViewers {
		lines(t, open(t, s, "/changes"), ": kubecdc")
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + s.Addr().String() + "/changes")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more than allowed gets %s", answer.Status)
	}
}

// TestAStalledViewerIsDisconnected floods a connection without a reading client, while another is served.
func TestAStalledViewerIsDisconnected(t *testing.T) {
	s := serve(t, Options{Snapshot: sample})
	slow, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if err := slow.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(slow, "GET /changes HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	const round = 100
	quick, taken := open(t, s, "/changes"), make(chan string, round)
	lines(t, quick, ": kubecdc")
	go func() { // takes what it is sent, whatever the test waits for
		defer close(taken)
		for line, err := quick.ReadString('\n'); err == nil; line, err = quick.ReadString('\n') {
			if strings.HasPrefix(line, "data: ") {
				taken <- line
			}
		}
	}()
	for s.viewers.Load() != 2 {
		time.Sleep(time.Millisecond)
	}
	padding := strings.Repeat("x", changeMaxBytes-100)
	for n := 0; s.viewers.Load() == 2; n++ {
		for range round {
			s.note(fmt.Sprintf(`{"n":%d,"x":%q}`, n, padding))
		}
		for range round {
			if line := <-taken; !strings.Contains(line, fmt.Sprintf(`"n":%d,`, n)) {
				t.Fatalf("in round %d the one that takes all is sent %.100q", n, line)
			}
		}
	}
	s.note(`{"last":true}`)
	if line := <-taken; !strings.Contains(line, `"last"`) {
		t.Errorf("afterwards it is sent %.100q", line)
	}
}

func TestARemovedViewEndsItsStream(t *testing.T) {
	s := serve(t, Options{Snapshot: sample})
	for path, want := range map[string]string{"/events?view=resource&name=pods": "event: status", "/events?view=resource&name=none": "", "/events?view=x": ""} {
		r := open(t, s, path)
		if want != "" {
			lines(t, r, want)
			continue
		}
		if rest, err := io.ReadAll(r); err != nil || strings.Contains(string(rest), "event:") {
			t.Errorf("%s: %v, %q", path, err, rest)
		}
	}
}

// TestRatesComeFromHowCountersGrow, and take a fixed amount of memory, however long the process runs.
func TestRatesComeFromHowCountersGrow(t *testing.T) {
	at := time.Now()
	var f *frame
	for n := range 10 * samplesKept {
		s := Snapshot{Sinks: []SinkStatus{{Name: "main", Stats: delivery.Stats{Delivered: uint64(20 * n)}}}}
		if n == 10*samplesKept-10 {
			s.Sinks[0].Delivered = 0 // restarted
		}
		f = f.nextFrame(s, at.Add(time.Duration(n)*sampleEvery))
	}
	for name, of := range f.stages {
		if len(of.Points) != samplesKept || cap(of.Points) > 2*samplesKept || name == countSink+"main" && of.Rate != 10 {
			t.Errorf("%s: %d points in space for %d, %v a second: %v", name, len(of.Points), cap(of.Points), of.Rate, of.Points)
		}
		if slices.ContainsFunc(of.Points, func(p float64) bool { return p < 0 }) {
			t.Errorf("%s: a counter that begins again is a negative rate: %v", name, of.Points)
		}
	}
	if next := f.nextFrame(Snapshot{}, at.Add(time.Hour)); len(f.stages[countSink+"main"].Points) == 0 || len(next.stages[countSink+"main"].Points) > 0 {
		t.Error("the rates of a removed sink are kept")
	}
}

func TestFailingResourcesComeFirst(t *testing.T) {
	s := sample()
	for n := range 60 {
		s.Resources = append(s.Resources, source.Status{Scope: fmt.Sprintf("a%02d", n), State: "live"})
	}
	s.Resources = append(s.Resources,
		source.Status{Scope: "x", State: "forbidden", Condition: statusOf("resource", "x", condition.Problem{Code: condition.ResourceForbidden})},
		source.Status{Scope: "z", State: "unreachable", Condition: statusOf("resource", "z", condition.Problem{Code: condition.APIServerUnreachable})})
	o := (*frame)(nil).nextFrame(s, time.Now()).buildOverview("v1")
	if o.Resources[0].Name != "z" || o.Resources[1].Name != "x" || o.Sick != 2 {
		t.Errorf("first come %s and %s of %d sick", o.Resources[0].Name, o.Resources[1].Name, o.Sick)
	}
	if body := get(t, s, "/").Body.String(); !strings.Contains(body, "62 more resources, live and quiet") {
		t.Errorf("the live and quiet ones are not put away:\n%s", body)
	}
}
