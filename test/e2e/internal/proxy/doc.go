// Package proxy stands between the exporter and API servers, as a load balancer does.
//
// A [Proxy] passes bytes on, gives each new connection to the next API server that answers, and cuts connections when a
// test asks for it. It does not inspect what it passes on.
//
// A [Gateway] ends TLS and passes requests on. It can answer some of them itself, hold them, or leave types out of
// discovery: faults that a real API server has and cannot be made to show.
package proxy
