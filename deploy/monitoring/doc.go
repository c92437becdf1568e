// Package monitoring is the one source of the alerts and of the dashboard. Files returns what is made of them: rules for
// Prometheus, a PrometheusRule for its operator, the page docs/alerts.md and a dashboard for Grafana. Its tests have
// promtool judge every rule.
package monitoring

//go:generate go run ./gen
