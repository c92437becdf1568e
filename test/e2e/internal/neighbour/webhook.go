package neighbour

import (
	"encoding/json"
	"net/http"
)

// Webhook converts custom resources by changing their apiVersion and nothing else, see
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/.
type Webhook struct{ *Server }

// StartWebhook starts a conversion webhook, at any path.
func StartWebhook() (*Webhook, error) {
	s, err := start(http.HandlerFunc(convert))
	return &Webhook{s}, err
}

func convert(w http.ResponseWriter, r *http.Request) {
	type request struct {
		UID               string           `json:"uid"`
		DesiredAPIVersion string           `json:"desiredAPIVersion"`
		Objects           []map[string]any `json:"objects"`
	}
	var review struct {
		APIVersion string  `json:"apiVersion"`
		Kind       string  `json:"kind"`
		Request    request `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, o := range review.Request.Objects {
		o["apiVersion"] = review.Request.DesiredAPIVersion
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": review.APIVersion, "kind": review.Kind,
		"response": map[string]any{
			"uid": review.Request.UID, "convertedObjects": review.Request.Objects, "result": map[string]any{"status": "Success"},
		},
	})
}
