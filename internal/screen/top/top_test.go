package top

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/ports"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// overview is one with much on it.
func overview() *admin.Overview {
	o := &admin.Overview{
		Version: "v1", Cluster: "prod\x1b[2J", Now: time.Now(), Problems: []condition.Report{{
			Name: "sink/main", Code: "SinkUnreachable", Cause: "no broker\x1b[2J answers", Effect: "0 of 62 lanes deliver",
			Remedy: "check kafka.brokers, the network, and TLS on both sides", Counts: true,
		}},
		Sick: 1, Resources: []admin.ResourceView{{Name: strings.Repeat("long", 30) + ".demo", State: "unreachable", Health: admin.Health{Sick: true}}},
		Sinks: []admin.SinkView{{Name: "main", Health: admin.Health{Sick: true}, Code: "SinkUnreachable", Backlog: 20412, LagSeconds: 68.04, Stage: admin.Stage{Rate: 3, Points: []float64{0, 3, 6}}}},
	}
	for i := range 100 {
		o.Resources = append(o.Resources, admin.ResourceView{Name: fmt.Sprintf("r%d", i), State: "live", Stage: admin.Stage{Rate: 12, Points: []float64{1, 0}}})
	}
	return o
}

var sequence = regexp.MustCompile(`\x1b\[[0-9;]*m`)

func TestAPictureFitsTheScreen(t *testing.T) {
	for _, width := range []int{20, 40, 80, 200} {
		for _, height := range []int{5, 24, 60} {
			lines := drawScreen(overview(), width, height, true)
			for _, line := range lines {
				line = sequence.ReplaceAllString(line, "")
				if strings.Contains(line, "\x1b") || utf8.RuneCountInString(line) > width {
					t.Errorf("%d x %d: a line of %d characters: %q", width, height, utf8.RuneCountInString(line), line)
				}
			}
			if height >= 24 && len(lines) > height {
				t.Errorf("%d x %d: %d lines", width, height, len(lines))
			}
		}
	}
}

func TestThePictureNamesWhatIsWrongFirst(t *testing.T) {
	text := strings.Join(drawScreen(overview(), 120, 40, false), "\n")
	at := 0
	for _, part := range []string{"✗ not ready", "sink/main", "SinkUnreachable", "no broker", "Effect: 0 of 62", "Remedy: check kafka.brokers",
		"API server", "main ", "SinkUnreachable", "20412", "1m8s", "▁▅█", "unreachable", "r0", "and "} {
		i := strings.Index(text[at:], part)
		if i < 0 {
			t.Fatalf("no %q in its place in\n%s", part, text)
		}
		at += i
	}
}

// serve runs an admin server and returns its address, which no other test takes afterwards, and a function that stops it.
func serve(t *testing.T, wrong ...condition.Status) (address string, stop func()) {
	t.Helper()
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	address = ports.Address(free[0])
	s := admin.New(admin.Options{Listen: address, Version: "v9", Snapshot: func() admin.Snapshot {
		return admin.Snapshot{Conditions: wrong, Sinks: []admin.SinkStatus{{Name: "main", Kind: "kafka"}}}
	}})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return address, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestTheTerminalIsGivenBack draws until the context ends, through the end of the exporter.
func TestTheTerminalIsGivenBack(t *testing.T) {
	address, stop := serve(t)
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Address: address, Out: w, Size: func() (int, int) { return 80, 24 }})
		w.Close()
	}()
	var seen bytes.Buffer
	await := func(text string) {
		t.Helper()
		b := make([]byte, 4096)
		for !strings.Contains(seen.String(), text) {
			n, err := r.Read(b)
			if err != nil {
				t.Fatalf("no %q: %v", text, err)
			}
			seen.Write(b[:n])
		}
	}
	await("kubecdc v9")
	stop()
	await("the exporter does not answer")
	cancel()
	rest, err := io.ReadAll(r)
	if seen.Write(rest); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if text := seen.String(); !strings.HasPrefix(text, takeScreen) || !strings.HasSuffix(text, giveScreen) || strings.Count(text, giveScreen) != 1 {
		t.Errorf("it begins with %q and ends with %q", text[:20], text[len(text)-20:])
	}
}

// TestNarrowScreensShowTheWholeRemedy on several lines.
func TestNarrowScreensShowTheWholeRemedy(t *testing.T) {
	lines := drawScreen(overview(), 30, 60, false)
	if text := strings.Join(strings.Fields(strings.Join(lines, " ")), " "); !strings.Contains(text, "check kafka.brokers, the network, and TLS on both sides") {
		t.Errorf("the remedy is cut:\n%s", strings.Join(lines, "\n"))
	}
}

// TestOnePictureOfAnUnreadyExporterIsAFailure for scripts.
func TestOnePictureOfAnUnreadyExporterIsAFailure(t *testing.T) {
	address, stop := serve(t, condition.NewStatus("resource", condition.Problem{Code: condition.APIServerUnreachable}))
	defer stop()
	var out bytes.Buffer
	err := Run(t.Context(), Options{Address: address, Out: &out, Size: func() (int, int) { return 80, 24 }, Once: true})
	if code, _ := exit.CodeOf(err); code != exit.Environment || !strings.Contains(out.String(), "APIServerUnreachable") {
		t.Errorf("it ends with %v after\n%s", err, out.String())
	}
}

func TestOnePictureTakesNoScreen(t *testing.T) {
	address, stop := serve(t)
	defer stop()
	var out bytes.Buffer
	if err := Run(t.Context(), Options{Address: address, Out: &out, Size: func() (int, int) { return 80, 24 }, Once: true}); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Contains(text, "\x1b") || !strings.Contains(text, "kubecdc v9") {
		t.Errorf("printed %q", text)
	}
}

func TestAnExporterThatIsNotThereIsNamed(t *testing.T) {
	address, stop := serve(t)
	stop()
	var out bytes.Buffer
	err := Run(t.Context(), Options{Address: address, Out: &out})
	if code, _ := exit.CodeOf(err); code != exit.Environment || !strings.Contains(err.Error(), address) || out.Len() > 0 {
		t.Errorf("it ends with %v and prints %q", err, out.String())
	}
}
