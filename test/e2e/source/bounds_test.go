package source

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	// probes is the number of concurrent requests while the exporter is at a bound.
	probes = 1000
	// noise is the allowed difference of goroutines and descriptors between two measurements of an exporter in the same
	// state.
	noise = 20
)

// TestPagesAnswerWhileTheJournalIsFull fills the journal up to its bound, because its only sink accepts nothing, and
// requests every page that could explain that, a thousand times at once. When the sink recovers, all changes arrive.
func TestPagesAnswerWhileTheJournalIsFull(t *testing.T) {
	t.Parallel()
	fillAndDrain(t, 260, 75_000, (*fixture).checkPages, func(settings *exporter.Settings) {
		settings.Journal = map[string]any{"maxBytes": "16Mi"}
	})
}

// TestFullSmallDiskRecovers fills a disk that is small compared with the store's own files.
func TestFullSmallDiskRecovers(t *testing.T) {
	t.Parallel()
	fillAndDrain(t, 1200, 75_000, func(*fixture) {}, func(settings *exporter.Settings) {
		settings.Wrap = smallDisk(t, settings.JournalDir(), "96m")
	})
}

// fillAndDrain writes objects of a size until the journal is full, calls look, lets the only sink accept changes again, and
// waits for all of them.
func fillAndDrain(t *testing.T, objects, bytes int, look func(*fixture), bound func(*exporter.Settings)) {
	t.Helper()
	to := newReceiver(t)
	s := newFixture(t, sharedControlPlane(t), nil, func(settings *exporter.Settings) {
		settings.Sinks = []map[string]any{to.sink()}
		bound(settings)
	})
	s.setRules(s.namespacedRule("configmaps"))
	s.requireNoError(s.exporter.Launch(t.Context()))
	s.createMany(objects, bytes)
	s.awaitPage("/readyz", http.StatusServiceUnavailable, "[-]journal")
	look(s)
	to.setUp(true)
	s.awaitReceived(to, objects)
}

// smallDisk returns a command that runs another one with a small disk mounted at a directory, in a mount namespace of its
// own. It needs a right that not every environment grants.
func smallDisk(t *testing.T, dir, size string) []string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	unshare := []string{"unshare", "--mount"}
	if os.Getuid() != 0 {
		unshare = append(unshare, "--map-root-user")
	}
	if out, err := exec.Command(unshare[0], append(unshare[1:], "mount", "-t", "tmpfs", "tmpfs", dir)...).CombinedOutput(); err != nil {
		require.Skip(t, fmt.Sprintf("a small disk cannot be mounted (%v: %s): allow unprivileged user namespaces, or run as root", err, out))
	}
	return append(unshare, "sh", "-c", `mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"`, "sh", size, filepath.Clean(dir))
}

// TestPagesAnswerDuringALongList stops the first list in the middle.
func TestPagesAnswerDuringALongList(t *testing.T) {
	t.Parallel()
	s, gateway := newFixtureBehindGateway(t, sharedControlPlane(t), nil)
	s.setRules(s.namespacedRule("configmaps"))
	s.createMany(100, 75_000)
	heal := gateway.Fault(func(r proxy.Request) bool { return r.Resource == "configmaps" && !r.Watch() }, func(w http.ResponseWriter, r *http.Request) {
		gateway.Pass(&limitedResponse{ResponseWriter: w, left: 5 << 20, until: r.Context().Done()}, r)
	})
	s.requireNoError(s.exporter.Launch(t.Context()))
	s.awaitPage("/readyz", http.StatusServiceUnavailable, "resource/configmaps", "ResourceSyncing")
	s.checkPages()
	heal()
	gateway.Cut()
	s.awaitPage("/readyz", http.StatusOK)
}

// limitedResponse is a response that stops after a number of bytes.
type limitedResponse struct {
	http.ResponseWriter
	left   int
	until  <-chan struct{}
	onStop func() // called at the stop; may be nil
}

func (r *limitedResponse) Write(p []byte) (int, error) {
	if r.left -= len(p); r.left < 0 {
		if r.onStop != nil {
			r.onStop()
		}
		<-r.until
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap lets a response controller flush.
func (r *limitedResponse) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// createMany creates ConfigMaps with the given number of random bytes each.
func (s *fixture) createMany(objects, bytes int) {
	s.t.Helper()
	const clients = 8
	numbers := make([]int, clients)
	for i := range numbers {
		numbers[i] = i
	}
	forEach(s.t, numbers, func(ctx context.Context, client int) error {
		for i := client; i < objects; i += clients {
			if err := s.cluster.Create(ctx, incompressible(i, bytes), s.name, fmt.Sprintf("o-%04d", i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// incompressible returns a kind of ConfigMaps with the given number of random bytes, the same for the same seed. Base64
// makes the text a third longer, and it does not compress below the number of bytes.
func incompressible(seed, bytes int) workload.Kind {
	kind := workload.ConfigMaps
	kind.Object = func() *unstructured.Unstructured {
		text := make([]byte, bytes)
		_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(text)
		o := workload.ConfigMaps.Object()
		o.Object["data"] = map[string]any{"step": "0", "noise": base64.StdEncoding.EncodeToString(text)}
		return o
	}
	return kind
}

// checkPages sends a thousand concurrent probes, and requests each page meanwhile. Every request is answered, and the
// exporter keeps no goroutine or descriptor.
func (s *fixture) checkPages() {
	s.t.Helper()
	goroutines, files := s.metricValue("go_goroutines"), s.openFiles()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: probes}}
	var all sync.WaitGroup
	unanswered := make(chan error, probes)
	for range probes {
		all.Go(func() {
			if err := s.probeOnce(client, "/readyz"); err != nil {
				unanswered <- err
			}
		})
	}
	for _, path := range []string{"/readyz", "/readyz?verbose", "/metrics", "/", "/livez"} {
		if code, text := s.getPage(path); code == 0 {
			s.t.Errorf("%s does not answer within %v: %s", path, answerTimeout, text)
		}
	}
	all.Wait()
	client.CloseIdleConnections()
	close(unanswered)
	if n := len(unanswered); n > 0 {
		s.t.Errorf("%d of %d probes were not answered within %v, the first: %v", n, probes, answerTimeout, <-unanswered)
	}
	s.awaitCondition(func() string {
		if g, f := s.metricValue("go_goroutines"), s.openFiles(); g > goroutines+noise || f > files+noise {
			return fmt.Sprintf("%d goroutines and %d descriptors to return to %d and %d", g, f, goroutines, files)
		}
		return ""
	})
}

// probeOnce sends one probe over a connection that no other probe uses meanwhile.
func (s *fixture) probeOnce(client *http.Client, path string) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), answerTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.exporter.Address()+path, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// openFiles returns the number of open descriptors of the exporter.
func (s *fixture) openFiles() int {
	s.t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.exporter.Process().Pid()))
	s.requireNoError(err)
	return len(all)
}

// awaitReceived waits until a receiver has all objects of createMany, and the exporter is ready.
func (s *fixture) awaitReceived(by *receiver, objects int) {
	s.t.Helper()
	s.awaitCondition(func() string {
		for i := range objects {
			if name := fmt.Sprintf("o-%04d", i); !by.hasReceived(name) {
				return name
			}
		}
		return ""
	})
	s.awaitPage("/readyz", http.StatusOK)
}
