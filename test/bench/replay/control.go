package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Requests counts what was asked about one resource.
type Requests struct {
	Lists      int64 `json:"lists"`      // list requests; each page is one
	WatchLists int64 `json:"watchLists"` // watches with initial events
	Watches    int64 `json:"watches"`    // watches from a position
	Live       int64 `json:"live"`       // watches that are open and have had their initial events
}

func (s *Server) routeControl(mux *http.ServeMux) {
	mux.HandleFunc("POST /replay/start", func(w http.ResponseWriter, r *http.Request) {
		rate, err := strconv.Atoi(r.URL.Query().Get("rate"))
		if err != nil {
			writeStatus(w, badRequest(err))
			return
		}
		s.startOnce.Do(func() {
			s.pace = pace{began: time.Now(), rate: rate}
			close(s.start)
		})
		writeJSON(w, http.StatusOK, "application/json", s.pace.began)
	})
	mux.HandleFunc("GET /replay/requests", func(w http.ResponseWriter, _ *http.Request) {
		answer := map[string]Requests{}
		for name, c := range s.counters {
			answer[name] = Requests{
				Lists: c.lists.Load(), WatchLists: c.watchLists.Load(), Watches: c.watches.Load(), Live: c.live.Load(),
			}
		}
		writeJSON(w, http.StatusOK, "application/json", answer)
	})
}

// Control steers a server from another process. Its methods may be called concurrently.
type Control struct {
	base   string
	client *http.Client
}

// Dial reads the kubeconfig that a server has written. It connects to nothing yet.
func Dial(kubeconfig string) (*Control, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	return &Control{base: config.Host, client: client}, nil
}

// Close drops the connections.
func (c *Control) Close() { c.client.CloseIdleConnections() }

// Start makes all changes happen: so many a second, or all at once for 0. It returns the time of the start. A second call
// changes nothing.
func (c *Control) Start(ctx context.Context, rate int) (began time.Time, err error) {
	body, err := c.do(ctx, http.MethodPost, "/replay/start?rate="+strconv.Itoa(rate))
	if err != nil {
		return began, err
	}
	return began, json.Unmarshal(body, &began)
}

// Requests returns the counters, by resource.
func (c *Control) Requests(ctx context.Context) (map[string]Requests, error) {
	body, err := c.do(ctx, http.MethodGet, "/replay/requests")
	if err != nil {
		return nil, err
	}
	var answer map[string]Requests
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("replay server: %w", err)
	}
	return answer, nil
}

func (c *Control) do(ctx context.Context, method, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		return nil, fmt.Errorf("replay server: %s %s: %s: %s", method, path, response.Status, body)
	}
	return body, nil
}
