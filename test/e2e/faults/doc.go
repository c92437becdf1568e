// Package faults stages what goes wrong around an exporter, one fault at a time with real parts, and holds that each is
// named: by /readyz, by the status page, and by exactly the alert that is meant for it, as a real Prometheus evaluates the
// shipped rules on the exporter's own metrics. Where the fault can be cured, nothing of that is left afterwards. The
// dashboard asks that Prometheus is tested here too.
package faults
