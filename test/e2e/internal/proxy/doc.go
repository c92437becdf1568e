// Package proxy stands between the exporter and API servers, as a load balancer does: it passes bytes on, gives each new
// connection to the next API server that answers, and cuts connections when a test says so. It knows nothing of what it
// passes on.
package proxy
