package e2e

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

const (
	hostileRequests = 1500  // by each way; KUBECDC_E2E_REQUESTS sets it for long proofs
	hostileSenders  = 48    // at once
	hostileMemory   = 60e6  // bytes above an idle exporter
	hostileJournal  = 64e6  // journal.maxBytes
	keptRefusals    = 20    // see docs/signals.md
	largestBody     = 4e6   // bytes
	usualBody       = 200e3 // of 19 in 20
)

// hostileBody returns a body that is no request, or one that is refused, of any size.
func hostileBody(random *rand.Rand) string {
	size := random.IntN(usualBody)
	if random.IntN(20) == 0 {
		size = random.IntN(largestBody)
	}
	switch random.IntN(9) {
	case 0:
		return strings.Repeat("x", size)
	case 1:
		return `{"signal":"pause","sink":"` + strings.Repeat("x", size) + `"}`
	case 2:
		return `{"signal":"deadletters.discard","sink":"nats","offsets":[` + strings.Repeat("1,", size/2) + `1]}`
	case 3:
		return `{"signal":"snapshot","sink":"nats","select":` + strings.Repeat("[", size) + `}`
	case 4:
		return `{` + strings.Repeat(`"sink":"nats",`, 2+size/14) + `"signal":"pause"}` // once would be a request
	case 5:
		return fmt.Sprintf(`{"signal":"snapshot","sink":"%d","select":[%s"pods"]}`, size, strings.Repeat(`"`+strings.Repeat("s", 253)+`",`, random.IntN(200)))
	case 6:
		return fmt.Sprintf(`{"signal":"snapshot","sink":"%d","select":["pods"],"objects":[%s"a/b"],"id":"%d"}`, size,
			strings.Repeat(`"`+strings.Repeat("n", 63)+"/"+strings.Repeat("o", 253)+`",`, random.IntN(200)), random.Uint64())
	case 7:
		return fmt.Sprintf(`{"signal":"deadletters.discard","sink":"nats","offset":%d}`, size)
	default:
		return fmt.Sprintf(`{"signal":"pause","sink":"%0200d","id":"%d"}`, size, random.Uint64())
	}
}

// hostileWay is one way to send requests.
type hostileWay struct {
	client *http.Client
	url    string
	token  string
}

func (s *fixture) hostileWays(journalDir string) map[string]hostileWay {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(journalDir, "signal.sock"))
	}
	admin := "http://" + s.exporter.Address() + "/v1/signals"
	return map[string]hostileWay{
		"socket":        {&http.Client{Transport: &http.Transport{DialContext: dial}}, "http://exporter/v1/signals", ""},
		"token":         {&http.Client{Transport: &http.Transport{}}, admin, signalToken},
		"without token": {&http.Client{Transport: &http.Transport{}}, admin, ""},
	}
}

// send sends a body, half of the time without its length, and returns the status; 0 if the connection was cut.
func (w hostileWay) send(ctx context.Context, random *rand.Rand) (int, error) {
	var body io.Reader = strings.NewReader(hostileBody(random))
	if random.IntN(2) == 0 {
		body = io.MultiReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, body)
	if err != nil {
		return 0, err
	}
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	response, err := w.client.Do(r)
	if err != nil {
		return 0, ctx.Err()
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// sendHostile sends so many requests by a way, and returns how often each status was the answer.
func (s *fixture) sendHostile(w hostileWay, n int) map[int]int {
	s.t.Helper()
	var mu sync.Mutex
	var sent atomic.Int64
	var senders sync.WaitGroup
	answers := map[int]int{}
	seed := newRandom(s.t).Uint64()
	for i := range uint64(hostileSenders) {
		random := rand.New(rand.NewPCG(seed, i))
		senders.Go(func() {
			for sent.Add(1) <= int64(n) {
				status, err := w.send(s.t.Context(), random)
				if err != nil {
					s.t.Error(err)
				}
				mu.Lock()
				answers[status]++
				mu.Unlock()
			}
		})
	}
	senders.Wait()
	w.client.CloseIdleConnections()
	return answers
}

// TestHostileRequestsCostLittle sends thousands of requests of any size by each way: memory and journal stay bounded, what
// was kept before stays in the list, and the exporter takes signals and delivers as ever, after a kill too.
func TestHostileRequestsCostLittle(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	w := newSignalWays(t)
	var dir string
	s := newFixture(t, kinds, w.configureSignals, func(settings *exporter.Settings) {
		settings.Journal = map[string]any{"maxBytes": int(hostileJournal)}
		dir = settings.JournalDir()
	})
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(20, kinds).Wait())
	s.awaitAll()
	for _, kind := range []string{"pause", "resume"} {
		s.ask("signal", kind, "--sink", "nats", "--config", s.exporter.Config())
	}
	before := s.listSignals(s.exporter)
	idle := s.residentBytes()
	for name, way := range s.hostileWays(dir) {
		answers := s.sendHostile(way, sizeOf(t, "KUBECDC_E2E_REQUESTS", hostileRequests))
		t.Logf("by %s the answers are %v", name, answers)
		for status := range answers {
			if way.token == "" && name != "socket" && status != http.StatusUnauthorized && status != 0 || status >= http.StatusInternalServerError {
				t.Errorf("by %s the answers are %v", name, answers)
			}
		}
	}
	used := s.exporter.Process().Usage().PeakRSS - idle
	size := bytesIn(t, dir)
	t.Logf("%.1f MB above %.1f MB; the journal has %.1f MB", float64(used)/1e6, float64(idle)/1e6, float64(size)/1e6)
	if used > hostileMemory || size > hostileJournal {
		t.Errorf("memory or the journal has grown out of bounds")
	}
	s.checkKept(before)
	s.must(s.exporter.Kill())
	s.must(s.exporter.Start(t.Context()))
	s.checkKept(before)
	s.must(s.load(20, kinds).Wait())
	s.awaitAll()
}

// checkKept checks that signals are still in the list, with few that were refused.
func (s *fixture) checkKept(before []keptSignal) {
	s.t.Helper()
	all := s.listSignals(s.exporter)
	if len(all) > len(before)+keptRefusals || !slices.Equal(all[:min(len(before), len(all))], before) {
		s.t.Fatalf("%d signals are kept, the first of them is %+v", len(all), all[0])
	}
	for _, one := range all[len(before):] {
		if one.State != "refused" || len(one.Result) > 200 {
			s.t.Errorf("kept is %+v", one)
		}
	}
}

// residentBytes returns the memory that the exporter has now.
func (s *fixture) residentBytes() (n int64) {
	s.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.exporter.Process().Pid()))
	s.must(err)
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &n); err == nil {
			return n << 10
		}
	}
	s.t.Fatal("the kernel does not name the memory of a process")
	return 0
}

// bytesIn returns the size of all files in a directory. Those of a journal come and go.
func bytesIn(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
