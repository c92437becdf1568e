package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// hide takes the hidden resources out of an answer to discovery, in either form that it has.
func (g *Gateway) hide(answer *http.Response) error {
	r := requestOf(answer.Request)
	if !r.Discovery() || answer.StatusCode != http.StatusOK || !g.hides() {
		return nil
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	answer.Body.Close()
	var document map[string]any
	if err := json.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("%s: %w", r.Path, err)
	}
	if items, aggregated := document["items"].([]any); aggregated {
		g.hideAggregated(items)
	} else if resources, legacy := document["resources"].([]any); legacy {
		group := ""
		if parts := strings.Split(r.Path, "/"); parts[1] == "apis" {
			group = parts[2]
		}
		document["resources"] = g.without(group, "name", resources)
	}
	if text, err = json.Marshal(document); err != nil {
		return err
	}
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	answer.Header.Set("Content-Length", strconv.Itoa(len(text)))
	answer.Header.Del("ETag")
	return nil
}

// hideAggregated takes the hidden resources out of the items of an APIGroupDiscoveryList.
func (g *Gateway) hideAggregated(groups []any) {
	for _, one := range groups {
		group := one.(map[string]any)
		metadata, _ := group["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		versions, _ := group["versions"].([]any)
		for _, one := range versions {
			version := one.(map[string]any)
			if resources, ok := version["resources"].([]any); ok {
				version["resources"] = g.without(name, "resource", resources)
			}
		}
	}
}

// without leaves the hidden ones out of the resources of a group; its name is in that member.
func (g *Gateway) without(group, member string, resources []any) []any {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest := []any{}
	for _, one := range resources {
		name, _ := one.(map[string]any)[member].(string)
		plural, _, _ := strings.Cut(name, "/")
		if !g.hidden[group+"/"+plural] {
			rest = append(rest, one)
		}
	}
	return rest
}

func (g *Gateway) hides() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, hidden := range g.hidden {
		if hidden {
			return true
		}
	}
	return false
}

// Status answers with an error as an API server writes it.
func Status(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"code":%d}`, message, reason, code)
}
