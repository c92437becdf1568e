package history

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/test/parts/require"
	"github.com/kubecdc/kubecdc/test/parts/s3server"
)

var testKeys = Keys{credentials.Text("anybody"), credentials.Text("anything")}

// faultyServer is a server of S3 behind a proxy that breaks requests.
type faultyServer struct {
	address string
	http    *httptest.Server
	// breaks returns what becomes of a request: 0 for nothing, 1 for an answer that is lost, -1 for a request that is lost.
	breaks atomic.Pointer[func(*http.Request) int]
	asked  atomic.Int64 // requests
	sent   atomic.Int64 // bytes of answers
}

func startFaulty(t *testing.T) *faultyServer {
	t.Helper()
	f := &faultyServer{address: s3server.Start(t, "bucket")}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { // signatures are not looked at; the host names the bucket
		r.SetURL(&url.URL{Scheme: "http", Host: f.address})
	}}
	f.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		becomes := 0
		if breaks := f.breaks.Load(); breaks != nil {
			becomes = (*breaks)(r)
		}
		answer := httptest.NewRecorder()
		if becomes >= 0 {
			proxy.ServeHTTP(answer, r)
		}
		if becomes != 0 {
			panic(http.ErrAbortHandler)
		}
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.Code)
		n, _ := w.Write(answer.Body.Bytes())
		f.sent.Add(int64(n))
	}))
	t.Cleanup(f.http.Close)
	return f
}

// bucket returns the store of a process: it knows nothing of others.
func (f *faultyServer) bucket(t *testing.T, prefix string) Store {
	t.Helper()
	b, err := StoreAt("s3://bucket/"+prefix+"?region=eu-central-1&endpoint="+f.http.URL, testKeys)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestNothingIsLostOrDoubledInABucketWhereverTheServerStops: from a request on every one is lost, with or without what it
// asks for, which is also what a process that is killed there sees.
func TestNothingIsLostOrDoubledInABucketWhereverTheServerStops(t *testing.T) {
	require.Long(t)
	f := startFaulty(t)
	const rows = 40
	for at := 1; ; at += 17 {
		random := rand.New(rand.NewPCG(1, uint64(at)))
		m, prefix := newModel(rows, random), fmt.Sprint("stopped-", at)
		asked := 0
		stops := func(*http.Request) int {
			asked++
			switch {
			case asked < at:
				return 0
			case asked == at && at%2 == 0:
				return 1
			}
			return -1
		}
		f.breaks.Store(&stops)
		w, err := openSmall(f.bucket(t, prefix))
		if err == nil {
			err = m.deliver(w, random)
		}
		f.breaks.Store(nil)
		if err == nil {
			if at < 100 {
				t.Fatalf("the whole test is %d requests", at)
			}
			m.verify(t, f.bucket(t, prefix))
			return
		}
		for range 2 { // the second start has nothing to do
			w, err := openSmall(f.bucket(t, prefix))
			if err != nil {
				t.Fatalf("stopped at %d: %v", at, err)
			}
			if err := errors.Join(m.deliver(w, random), w.Close()); err != nil {
				t.Fatalf("stopped at %d: %v", at, err)
			}
		}
		m.verify(t, f.bucket(t, prefix))
	}
}

// TestAnOlderWriterOfABucketIsFenced, and one whose number is gone, as in a folder.
func TestAnOlderWriterOfABucketIsFenced(t *testing.T) {
	f, random := startFaulty(t), rand.New(rand.NewPCG(1, 2))
	m := newModel(120, random)
	first, err := openSmall(f.bucket(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	begun := &model{rows: m.rows[:30]}
	if err := begun.deliver(first, random); err != nil {
		t.Fatal(err)
	}
	m.settled = begun.settled
	second, err := openSmall(f.bucket(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	var fenced *FencedError
	again := &model{rows: m.rows, settled: begun.settled}
	for range 2 {
		if err := again.deliver(first, random); !errors.As(err, &fenced) || fenced.Writer != second.id {
			t.Errorf("the first writer continued: %v", err)
		}
	}
	if err := m.deliver(second, random); err != nil {
		t.Fatal(err)
	}
	first.unsure = false // as if it had been frozen since
	if err := again.deliver(first, random); !errors.As(err, &fenced) {
		t.Errorf("it committed: %v", err)
	}
	m.verify(t, f.bucket(t, ""))
}

// TestAnAnswerThatIsLostIsNoLoss: the client asks again, and finds what it has created itself.
func TestAnAnswerThatIsLostIsNoLoss(t *testing.T) {
	f, random := startFaulty(t), rand.New(rand.NewPCG(1, 2))
	m, n := newModel(60, random), 0
	breaks := func(r *http.Request) int {
		if n++; r.Method == http.MethodPut && n%5 == 0 {
			return 1
		}
		return 0
	}
	f.breaks.Store(&breaks)
	w, err := openSmall(f.bucket(t, "x"))
	if err == nil {
		err = m.deliver(w, random)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.verify(t, f.bucket(t, "x"))
}

// TestFilesThatAreReadStayForAWhile: a question that has begun reads what is merged meanwhile; the next writer removes it.
func TestFilesThatAreReadStayForAWhile(t *testing.T) {
	f, random := startFaulty(t), rand.New(rand.NewPCG(1, 2))
	m := newModel(80, random)
	w, err := openSmall(f.bucket(t, "x"))
	if err != nil {
		t.Fatal(err)
	}
	begun := &model{rows: m.rows[:5]}
	if err := begun.deliver(w, random); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, f.bucket(t, "x"))
	m.settled = begun.settled
	if err := m.deliver(w, random); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, err := range s.Rows(t.Context(), Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 5 {
		t.Errorf("%d rows", n)
	}
	if w, err = openSmall(f.bucket(t, "x")); err != nil {
		t.Fatal(err)
	}
	names, err := w.store.list(dayPrefix)
	if err != nil || len(names) != len(w.manifest.Files) {
		t.Errorf("%d files, want %d (%v)", len(names), len(w.manifest.Files), err)
	}
}

// TestAStoreWithoutConditionalWritesIsRefused: one that ignores the condition, and one that does not know it.
func TestAStoreWithoutConditionalWritesIsRefused(t *testing.T) {
	for name, status := range map[string]int{"ignored": http.StatusOK, "unknown": http.StatusNotImplemented} {
		t.Run(name, func(t *testing.T) {
			written := false
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("ETag", `"1"`)
				if r.Method == http.MethodPut && written {
					w.WriteHeader(status)
				}
				written = true
			}))
			defer server.Close()
			b, err := StoreAt("s3://bucket?region=x&endpoint="+server.URL, testKeys)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := OpenWriter(b); !errors.Is(err, ErrUnconditional) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestALargeFileIsReadInParts: a question about one object reads a small part of it, and a merge writes it in parts.
func TestALargeFileIsReadInParts(t *testing.T) {
	f := startFaulty(t)
	in := f.bucket(t, "large")
	content := bytes.Repeat([]byte("0123456789abcdef"), 20<<16) // 20 MiB
	err := in.write("day=2026-11-28/1.parquet", func(w io.Writer) error {
		for part := content; len(part) > 0; part = part[min(len(part), 100_000):] {
			if _, err := w.Write(part[:min(len(part), 100_000)]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	before := f.sent.Load()
	b, err := in.open("day=2026-11-28/1.parquet", int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{0, 5<<20 - 3, len(content) - 10, 1} {
		got := make([]byte, min(100, len(content)-at))
		if n, err := b.ReadAt(got, int64(at)); n != len(got) || !bytes.Equal(got, content[at:at+len(got)]) {
			t.Errorf("at %d: %q, %v", at, got, err)
		}
	}
	if sent := f.sent.Load() - before; sent > 4*blockBytes+100_000 {
		t.Errorf("%d bytes were read", sent)
	}
	failure := errors.New("broken")
	for _, length := range []int{10, 20 << 20} {
		err := in.write("day=2026-11-28/2.parquet", func(w io.Writer) error {
			_, _ = w.Write(content[:length])
			return failure
		})
		if !errors.Is(err, failure) {
			t.Errorf("%v", err)
		}
		if _, err := in.read("day=2026-11-28/2.parquet"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("half a file is there: %v", err)
		}
	}
}

func TestAnAddressThatIsNoneIsRefused(t *testing.T) {
	for where, want := range map[string]string{
		"s3://":                                  "expected s3://BUCKET/PREFIX",
		"s3:bucket":                              "expected s3://BUCKET/PREFIX",
		"s3://b/x":                               "3 characters",
		"s3://bucket?regio=x":                    `unknown parameter "regio"`,
		"s3://bucket?endpoint=host:9000":         "expected https://HOST:PORT",
		"s3://key:hush@bucket/x":                 "expected s3://BUCKET/PREFIX",
		"s3://bucket?endpoint=https://k:hush@h/": "expected https://HOST:PORT",
	} {
		if _, err := StoreAt(where, Keys{}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", where, err)
		}
	}
}
