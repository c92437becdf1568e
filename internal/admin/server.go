package admin

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/kubecdc/kubecdc/internal/port"
	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Options configure a server.
type Options struct {
	Listen   string          // "host:port"; "" is DefaultListen
	Version  string          // of the exporter, for the page and kubecdc_build_info
	Snapshot func() Snapshot // required; called for every request, concurrently, and should answer at once
	Logger   *slog.Logger    // nil: slog.Default()
	// DeadLetters returns the newest dead letters of a sink, at most so many, for its page. It may read a disk. nil: none
	// are shown.
	DeadLetters func(sink string, most int) ([]DeadLetter, error)
	// Signals serves the paths that signals are taken at. It authenticates every request. nil: there are none.
	Signals map[string]http.Handler
	// Timelines answers /history. nil: there is none.
	Timelines *Timelines
}

// DefaultListen is loopback only: what the server shows has no authentication, but for timelines.
const DefaultListen = "127.0.0.1:8080"

// memoryInUse adds go_gc_heap_live_bytes: what the last garbage collection found in use. It shows a leak, which
// go_memstats_heap_alloc_bytes hides behind garbage.
var memoryInUse = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/gc/heap/live:bytes$`)}

// clashing has the name that OpenMetrics gives to the family of the counter go_memstats_alloc_bytes_total: a strict parser
// refuses both. go_memstats_heap_alloc_bytes has the same value.
const clashing = "go_memstats_alloc_bytes"

// Server serves /metrics, /livez, /readyz, the status page at / and what that streams. Its methods may be called
// concurrently.
type Server struct {
	options  Options
	registry prometheus.Gatherer
	publish  *prometheus.HistogramVec
	delivery *prometheus.HistogramVec
	handler  http.Handler
	listener net.Listener
	port     *port.Port

	latest  atomic.Pointer[frame]
	changes changeRing
	viewers atomic.Int32 // connected streams
}

// New makes a server. It does not listen yet.
func New(options Options) *Server {
	options.Listen, options.Logger = cmp.Or(options.Listen, DefaultListen), cmp.Or(options.Logger, slog.Default())
	s := &Server{options: options, port: port.New(options.Listen, options.Logger), publish: prometheus.NewHistogramVec(publishSeconds, []string{"sink"}),
		delivery: prometheus.NewHistogramVec(deliverySeconds, []string{"sink"})}
	build := prometheus.NewGaugeVec(buildInfo, []string{"version", "goversion"})
	build.WithLabelValues(options.Version, runtime.Version()).Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(memoryInUse)), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		build, s.publish, s.delivery, &collector{snapshot: options.Snapshot},
	)
	s.registry = prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := registry.Gather()
		return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == clashing }), err
	})
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{
		ErrorLog: s.errorLog(), ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true,
	})
	c := &crowd{places: map[string]*sharedPlace{"": {building: make(chan struct{}, 1)}}}
	mux.HandleFunc("GET /metrics", c.share(metricsKey, metrics.ServeHTTP))
	// 200 while the process runs. Faults of the environment belong to readiness: a restart would not help.
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		setHeaders(w, "text/plain; charset=utf-8")
		fmt.Fprintln(w, "ok")
	})
	readyKey := func(r *http.Request) string { return fmt.Sprint("ready ", r.URL.Query().Has("verbose")) }
	mux.HandleFunc("GET /readyz", c.share(readyKey, s.handleReady))
	mux.HandleFunc("GET /{$}", c.share(pathKey, s.handlePage(viewOverview)))
	mux.HandleFunc("GET /resource", c.share(nameKey, s.handlePage(viewResource)))
	mux.HandleFunc("GET /sink", c.share(nameKey, s.handlePage(viewSink)))
	mux.HandleFunc("GET /status.js", s.handleFile("status.js", "text/javascript; charset=utf-8"))
	mux.HandleFunc("GET /status.css", s.handleFile("status.css", "text/css; charset=utf-8"))
	mux.HandleFunc("GET /runbooks", s.handleFile("runbooks.html", "text/html; charset=utf-8"))
	mux.HandleFunc("GET /status.json", c.share(pathKey, s.handleOverview))
	mux.HandleFunc("GET /events", s.handlePageEvents)
	mux.HandleFunc("GET /changes", s.handleChanges)
	if options.Timelines != nil {
		mux.Handle("GET /history", &timelineHandler{options.Timelines, options.Version, options.Logger, make(chan struct{}, 1)})
	}
	for path, handler := range options.Signals {
		mux.Handle(path, handler)
	}
	s.handler = s.rejectForeignHosts(mux)
	return s
}

// Metrics returns what /metrics serves.
func (s *Server) Metrics() prometheus.Gatherer { return s.registry }

// ObservePublish records how long one call to a sink took, from the call to its answer.
func (s *Server) ObservePublish(sink string, took time.Duration) {
	s.publish.WithLabelValues(sink).Observe(took.Seconds())
}

// ObserveChange records the facts of a change for viewers: write appends them to a slice, as a JSON object on one line,
// without bodies; short appends less, where that is too much. They are called before it returns.
func (s *Server) ObserveChange(write, short func([]byte) []byte) {
	s.changes.appendChange(write, short)
}

// ObserveDelivery records the age of a change when the sink's destination acknowledged it.
func (s *Server) ObserveDelivery(sink string, age time.Duration) {
	s.delivery.WithLabelValues(sink).Observe(max(age, 0).Seconds()) // a clock may have been set back meanwhile
}

// Listen takes the address, so that a port in use is known before anything else starts. Call it once, before [Server.Run].
// The error names the address.
func (s *Server) Listen() error {
	l, err := net.Listen("tcp", s.options.Listen)
	if err != nil {
		return err
	}
	s.listener = l
	return nil
}

// Addr returns the address that is listened on, with the port that was taken for port 0. Valid after [Server.Listen].
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends and returns nil, or the error that stopped it. Requests under way then have a short time to
// end. No goroutine is left when it returns.
func (s *Server) Run(ctx context.Context) error {
	var sampling sync.WaitGroup
	defer sampling.Wait()
	ctx, stopSampling := context.WithCancel(ctx)
	defer stopSampling()
	sampling.Go(func() { s.sampleRegularly(ctx) })
	return s.port.Serve(ctx, s.listener, &http.Server{
		Handler:      s.handler,
		ReadTimeout:  10 * time.Second,
		WriteTimeout: 30 * time.Second,
		IdleTimeout:  time.Minute,
		ErrorLog:     s.errorLog(),
	})
}

// PortStatus returns whether the port is flooded.
func (s *Server) PortStatus() condition.Status { return s.port.Status() }

// handleReady answers 200 when every check is well and else 503 with the checks that are not, one a line as the API server's
// own /readyz writes them. A degraded check, which does not fail readiness, has a line in either case. ?verbose also shows
// what is well.
func (s *Server) handleReady(w http.ResponseWriter, r *http.Request) {
	snapshot, now := s.options.Snapshot(), time.Now()
	var b strings.Builder
	failed, listed := 0, map[string]bool{}
	for _, c := range condition.Summarize(snapshot.Conditions) {
		mark := "[!]"
		if c.Severity == condition.NotReady {
			mark = "[-]"
			failed++
		}
		fmt.Fprintf(&b, "%s%s %s\n", mark, c.Name(), c.Text(now))
		listed[c.Name()] = true
	}
	if r.URL.Query().Has("verbose") {
		snapshot.writeWell(&b, listed)
	}
	setHeaders(w, "text/plain; charset=utf-8")
	if failed > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "%snot ready: %s failed\n", b.String(), formatCount(failed, "check"))
		return
	}
	fmt.Fprintf(w, "%sok\n", b.String())
}

// writeWell writes a line for everything without a problem, once by its name, unless that is listed already.
func (s Snapshot) writeWell(b *strings.Builder, listed map[string]bool) {
	for _, c := range s.Conditions {
		if !c.OK() || listed[c.Name()] {
			continue
		}
		listed[c.Name()] = true
		detail := ""
		if c.Component == "replica" && s.Replica != nil {
			detail = ": " + s.Replica.describeRole()
		}
		fmt.Fprintf(b, "[+]%s ok%s\n", c.Name(), detail)
	}
}

// errorLog passes on what the HTTP packages complain of.
func (s *Server) errorLog() *log.Logger {
	return slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelWarn)
}

// rejectForeignHosts refuses requests for other hosts while the server listens on loopback. A web page that a user opens can
// have its own name resolve to 127.0.0.1 and read what this server shows; its browser still sends that name as Host.
func (s *Server) rejectForeignHosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 { // else the request is not complete yet
			port.Prove(r.Context())
		}
		if s.onLoopback() && !isLocal(r.Host) {
			http.Error(w, "this server is for the machine that it runs on: ask for localhost or 127.0.0.1", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) onLoopback() bool {
	if s.listener == nil {
		return false
	}
	addr, ok := s.listener.Addr().(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// isLocal reports whether a Host header, with or without a port, names this machine.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || net.ParseIP(host).IsLoopback()
}

// An answer is built in memory, from all that the exporter knows. crowd lets requests of the same moment have one
// answer, so that a thousand of them cost the memory of a few, also while they do not take it. Safe for concurrent use.
type crowd struct {
	mu      sync.Mutex
	places  map[string]*sharedPlace
	writing atomic.Int32  // answers that are being sent
	events  atomic.Uint64 // counts what happens: a request has come, an answer is begun
}

const (
	maxSharedPlaces = 256         // more are answered one after the other, each with its own
	crowdSize       = 32          // from so many answers that are being sent on,
	crowdAge        = time.Second // one that is so old is sent again
)

// sharedPlace is what is asked for.
type sharedPlace struct {
	building chan struct{}                // full while an answer is built; the next two require it
	newest   atomic.Pointer[sharedAnswer] // nil before the first
}

// sharedAnswer is an answer in memory. It does not change once it is built.
type sharedAnswer struct {
	begun  uint64 // which of crowd.events that was
	at     time.Time
	header http.Header
	code   int
	body   []byte
}

// Header implements [http.ResponseWriter].
func (a *sharedAnswer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *sharedAnswer) WriteHeader(code int) { a.code = code }

// Write implements [http.ResponseWriter].
func (a *sharedAnswer) Write(b []byte) (int, error) {
	a.body = append(a.body, b...)
	return len(b), nil
}

// share has requests with the same key answered by build at once. What it answers was begun after each of them had come,
// unless very many are being answered.
func (c *crowd) share(key func(*http.Request) string, build http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a := c.findAnswer(r, key(r), build)
		if a == nil {
			return // the client has gone
		}
		c.writing.Add(1)
		defer c.writing.Add(-1)
		maps.Copy(w.Header(), a.header)
		w.WriteHeader(a.code)
		_, _ = w.Write(a.body) // the client may have disconnected
	}
}

// findAnswer returns the answer for a request; nil if its client goes before.
func (c *crowd) findAnswer(r *http.Request, key string, build http.HandlerFunc) *sharedAnswer {
	came := c.events.Add(1)
	p, shared := c.place(key)
	select {
	case p.building <- struct{}{}:
		defer func() { <-p.building }()
	case <-r.Context().Done():
		return nil
	}
	isCrowd := c.writing.Load() > crowdSize
	if a := p.newest.Load(); a != nil && (a.begun > came || isCrowd && time.Since(a.at) < crowdAge) {
		return a
	}
	a := &sharedAnswer{begun: c.events.Add(1), at: time.Now(), header: http.Header{}, code: http.StatusOK}
	build(a, r)
	if shared && a.code == http.StatusNotFound { // anybody can invent places that are not there
		c.mu.Lock()
		delete(c.places, key)
		c.mu.Unlock()
	} else if shared {
		p.newest.Store(a)
	}
	return a
}

// place returns the place with a key, and whether its answers may be shared.
func (c *crowd) place(key string) (p *sharedPlace, shared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if shared = c.places[key] != nil || len(c.places) < maxSharedPlaces; !shared {
		key = ""
	}
	if p = c.places[key]; p == nil {
		p = &sharedPlace{building: make(chan struct{}, 1)}
		c.places[key] = p
	}
	return p, shared
}

// What answers depend on; nothing else that a client can choose.

func metricsKey(r *http.Request) string {
	coding := ""
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		coding = "gzip"
	}
	r.Header.Set("Accept-Encoding", coding)
	return "metrics " + string(expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...)) + " " + coding
}

func pathKey(r *http.Request) string { return r.URL.Path }

func nameKey(r *http.Request) string { return r.URL.Path + " " + r.URL.Query().Get("name") }
