package crowd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Options define the objects.
type Options struct {
	Objects    int
	Bytes      int // of each object's data, about
	Namespaces int // that objects are spread over, "crowd-0" and so on; at least one
}

// Server serves a crowd. Its methods may be called concurrently.
type Server struct {
	options Options
	http    *httptest.Server
	ballast string
	ended   chan struct{} // closed by Close
	lists   atomic.Int64

	mu      sync.Mutex
	turn    int           // how often everything has changed
	changed chan struct{} // closed and replaced when it does
}

// Start listens on a free loopback port. Close must be called.
func Start(options Options) *Server {
	s := &Server{options: options, ended: make(chan struct{}), changed: make(chan struct{})}
	var b strings.Builder // no repetition of itself, but for its alphabet
	for i := 0; b.Len() < options.Bytes; i++ {
		fmt.Fprintf(&b, "%x=%d;", i*2654435761, i)
	}
	s.ballast = b.String()[:options.Bytes]
	s.http = httptest.NewServer(s.handler())
	return s
}

// Kubeconfig writes a file that leads to the server.
func (s *Server) Kubeconfig(path string) error {
	c := api.NewConfig()
	c.Clusters["crowd"] = &api.Cluster{Server: s.http.URL}
	c.AuthInfos["crowd"] = &api.AuthInfo{}
	c.Contexts["crowd"] = &api.Context{Cluster: "crowd", AuthInfo: "crowd"}
	c.CurrentContext = "crowd"
	return clientcmd.WriteToFile(*c, path)
}

// ChangeAll changes every object, and forgets history before that: watches end with 410, and older positions are too old.
func (s *Server) ChangeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	close(s.changed)
	s.changed = make(chan struct{})
}

// Lists returns how many times everything was listed so far.
func (s *Server) Lists() int { return int(s.lists.Load()) }

// Close ends all answers and returns when no request runs.
func (s *Server) Close() {
	close(s.ended)
	s.http.CloseClientConnections()
	s.http.Close()
}

// moment is the crowd at one time. Each turn gives every object another resourceVersion, which ascend.
type moment struct {
	turn    int
	changed <-chan struct{} // closed when it is over
}

func (s *Server) now() moment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return moment{s.turn, s.changed}
}

// begins is the resourceVersion before the first one of a turn.
func (s *Server) begins(turn int) int { return 1000 + turn*(s.options.Objects+1000) }

// position is the newest resourceVersion of a turn.
func (s *Server) position(turn int) int { return s.begins(turn) + s.options.Objects }

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	document := func(path, text string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, text)
		})
	}
	document("/version", `{"major":"1","minor":"37","gitVersion":"v1.37.1"}`)
	document("/api", `{"kind":"APIVersions","versions":["v1"]}`)
	document("/apis", `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	document("/api/v1", `{"kind":"APIResourceList","groupVersion":"v1","resources":[
		{"name":"configmaps","singularName":"configmap","namespaced":true,"kind":"ConfigMap","verbs":["get","list","watch"]},
		{"name":"namespaces","singularName":"namespace","namespaced":false,"kind":"Namespace","verbs":["get"]}]}`)
	document("/api/v1/namespaces/kube-system", `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system",
		"uid":"5c8a1b0e-7d3f-4e21-a6b4-90f1d2c3e4b5","resourceVersion":"4"}}`)
	mux.HandleFunc("GET /api/v1/configmaps", s.serve)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { refuse(w, http.StatusNotFound, "NotFound", r.URL.Path) })
	return mux
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status(code, reason, message))
}

func status(code int, reason, message string) map[string]any {
	return map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}
}

// The name in the one field selector that the server knows, by which the exporter asks how far history is.
const nobody = "metadata.name=kubecdc-no-such-object"

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	initial := q.Get("sendInitialEvents") == "true"
	selector := q.Get("fieldSelector")
	switch {
	case q.Get("labelSelector") != "" || selector != "" && selector != nobody:
		refuse(w, http.StatusBadRequest, "BadRequest", "no selectors here")
	case q.Get("watch") != "":
		s.watch(w, r, initial)
	case selector != "":
		s.page(w, 0, 0, 0, s.now().turn)
	default:
		s.list(w, q.Get("limit"), q.Get("continue"))
	}
}

// list answers with a page. A token is "turn:index"; that of another turn has expired.
func (s *Server) list(w http.ResponseWriter, limit, token string) {
	turn, from := s.now().turn, 0
	if token != "" {
		var of int
		if _, err := fmt.Sscanf(token, "%d:%d", &of, &from); err != nil || of != turn {
			refuse(w, http.StatusGone, "Expired", "The provided continue parameter is too old")
			return
		}
	}
	to := s.options.Objects
	if n, err := strconv.Atoi(limit); err == nil && n > 0 {
		to = min(to, from+n)
	}
	if to == s.options.Objects {
		s.lists.Add(1)
	}
	s.page(w, from, to, s.options.Objects-to, turn)
}

func (s *Server) page(w http.ResponseWriter, from, to, left, turn int) {
	w.Header().Set("Content-Type", "application/json")
	b := fmt.Appendf(nil, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"%d"`, s.position(turn))
	if left > 0 {
		b = fmt.Appendf(b, `,"continue":"%d:%d","remainingItemCount":%d`, turn, to, left)
	}
	b = append(b, `},"items":[`...)
	for i := from; i < to; i++ {
		if i > from {
			b = append(b, ',')
		}
		b = s.object(b, i, turn)
		if len(b) > 64<<10 {
			if _, err := w.Write(b); err != nil {
				return
			}
			b = b[:0]
		}
	}
	_, _ = w.Write(append(b, `]}`...))
}

// object appends an object, without kind and apiVersion, as lists do.
func (s *Server) object(b []byte, i, turn int) []byte {
	b = append(b, `{"metadata":{"name":"o-`...)
	b = strconv.AppendInt(b, int64(1_000_000+i), 10) // in the order of their names
	b = append(b, `","namespace":"crowd-`...)
	b = strconv.AppendInt(b, int64(i%max(1, s.options.Namespaces)), 10)
	b = append(b, `","uid":"00000000-0000-4000-8000-00000`...)
	b = strconv.AppendInt(b, int64(1_000_000+i), 10)
	b = append(b, `","resourceVersion":"`...)
	b = strconv.AppendInt(b, int64(s.begins(turn)+i+1), 10)
	b = append(b, `","creationTimestamp":"2025-01-01T00:00:00Z"},"data":{"turn":"`...)
	b = strconv.AppendInt(b, int64(turn), 10)
	b = append(b, `","text":"`...)
	b = append(b, s.ballast...)
	return append(b, `"}}`...)
}

// watch sends bookmarks until everything changes.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, initial bool) {
	at := s.now()
	w.Header().Set("Content-Type", "application/json")
	if from := r.URL.Query().Get("resourceVersion"); !initial && from != "" && from != "0" {
		if n, err := strconv.Atoi(from); err != nil || n < s.begins(at.turn) {
			s.event(w, "ERROR", status(http.StatusGone, "Expired", "too old resource version: "+from))
			return
		}
	}
	s.bookmark(w, at.turn, initial)
	s.follow(r.Context(), w, at)
}

func (s *Server) follow(ctx context.Context, w http.ResponseWriter, at moment) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ended:
			return
		case <-at.changed:
			s.event(w, "ERROR", status(http.StatusGone, "Expired", "too old resource version"))
			return
		case <-tick.C:
			s.bookmark(w, at.turn, false)
		}
	}
}

func (s *Server) bookmark(w http.ResponseWriter, turn int, end bool) {
	metadata := map[string]any{"resourceVersion": strconv.Itoa(s.position(turn))}
	if end {
		metadata["annotations"] = map[string]any{"k8s.io/initial-events-end": "true"}
	}
	s.event(w, "BOOKMARK", map[string]any{"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata})
}

func (s *Server) event(w http.ResponseWriter, kind string, object map[string]any) {
	text, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		panic(err)
	}
	_, _ = w.Write(append(text, '\n'))
	_ = http.NewResponseController(w).Flush()
}
