package admin

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// metric describes one family. A name with the suffix "_total" is a counter, any other one a gauge.
type metric struct {
	name   string
	help   string
	labels []string
	values func(s Snapshot, emit emit) // calls emit once a series; nil for a field of the snapshot
}

type emit = func(value float64, labels ...string)

// metrics lists every family that is read from a snapshot. docs/metrics.md is written from it.
var metrics = append(fieldMetrics(reflect.TypeFor[Snapshot](), nil), derivedMetrics...)

// fieldMetrics returns the families of the tagged fields in a type, see Snapshot.
func fieldMetrics(t reflect.Type, labels []string) (all []metric) {
	switch t.Kind() {
	case reflect.Slice, reflect.Pointer:
		return fieldMetrics(t.Elem(), labels)
	case reflect.Struct:
		for i := range t.NumField() {
			tag := t.Field(i).Tag
			labels = appendTag(labels, tag, "label")
			if name := tag.Get("metric"); name != "" {
				all = append(all, metric{name, tag.Get("help"), appendTag(labels, tag, "by"), nil})
			} else if t.Field(i).IsExported() {
				all = append(all, fieldMetrics(t.Field(i).Type, labels)...)
			}
		}
	default: // no fields
	}
	return all
}

func appendTag(labels []string, tag reflect.StructTag, key string) []string {
	if value := tag.Get(key); value != "" {
		return append(slices.Clip(labels), value)
	}
	return labels
}

// emitFields calls emit for each series of the tagged fields in a value. A label comes before the fields that it is for.
func emitFields(v reflect.Value, labels []string, emit func(name string, value float64, labels ...string)) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			emitFields(v.Index(i), labels, emit)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			emitFields(v.Elem(), labels, emit)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f, field := v.Type().Field(i), v.Field(i)
			if f.Tag.Get("label") != "" {
				labels = append(slices.Clip(labels), field.String())
			}
			switch name := f.Tag.Get("metric"); {
			case name == "" && f.IsExported():
				emitFields(field, labels, emit)
			case name != "" && field.Kind() == reflect.Map:
				for key, of := range field.Seq2() {
					emit(name, floatOf(of), append(slices.Clip(labels), key.String())...)
				}
			case name != "":
				emit(name, floatOf(field), labels...)
			}
		}
	default: // no fields
	}
}

// floatOf returns a number; of a time or a duration its seconds, and 1 for true.
func floatOf(v reflect.Value) float64 {
	switch of := v.Interface().(type) {
	case time.Time:
		return unixSeconds(of)
	case time.Duration:
		return of.Seconds()
	case bool:
		return boolToFloat(of)
	}
	return v.Convert(reflect.TypeFor[float64]()).Float()
}

// derivedMetrics are the families that are no fields.
var derivedMetrics = []metric{
	{"kubecdc_ready", "1 when the exporter is ready; /readyz has the reasons if it is not.", nil, func(s Snapshot, emit emit) {
		emit(boolToFloat(s.isReady()))
	}},
	{"kubecdc_condition", "What is wrong: how many parts of the component, such as resources or lanes, it concerns. No series while nothing is; docs/conditions.md has the codes.",
		[]string{"code", "component", "severity"}, func(s Snapshot, emit emit) {
			parts := map[[3]string]int{}
			for _, c := range s.problems() {
				parts[seriesOf(c)] += max(1, len(c.Members))
			}
			for labels, n := range parts {
				emit(float64(n), labels[:]...)
			}
		}},
	{"kubecdc_condition_deadline_timestamp_seconds", "When history begins to get lost unless the condition ends; the time is estimated. No series without such a condition.",
		[]string{"code", "component", "severity"}, func(s Snapshot, emit emit) {
			deadlines := map[[3]string]time.Time{}
			for _, c := range s.problems() {
				if !c.Deadline.IsZero() {
					deadlines[seriesOf(c)] = condition.Earlier(deadlines[seriesOf(c)], c.Deadline)
				}
			}
			for labels, at := range deadlines {
				emit(unixSeconds(at), labels[:]...)
			}
		}},
	{"kubecdc_active", "1 if this process is active; 0 while it is a standby, takes over, or has not renewed the Lease within election.duration.", nil,
		func(s Snapshot, emit emit) {
			emit(boolToFloat(s.isActive() && (s.Replica == nil || !s.Replica.Unproven)))
		}},
	{"kubecdc_config_info", "1, with the first 12 digits of the SHA-256 of the configuration's file that works.", []string{"hash"},
		func(s Snapshot, emit emit) { emit(1, s.Config.Hash) }},
	{"kubecdc_config_reloads_total", "Changed configurations, by what became of them: taken or refused.", []string{"result"},
		func(s Snapshot, emit emit) {
			emit(float64(s.Config.Reloads), "taken")
			emit(float64(s.Config.Refusals), "refused")
		}},
	codeMetric("kubecdc_config_refused", "1 while the configuration file is refused and an earlier one stays active; /readyz has the reason.", condition.ConfigRefused),
	codeMetric("kubecdc_config_pending", "1 while the configuration file is accepted and not active yet; /readyz has the reason.", condition.ConfigPending),
	codeMetric("kubecdc_cluster_unchecked", "1 if a missing permission prevents the check that the cluster is the one that the journal was filled from.",
		condition.ClusterUnchecked),
	codeMetric("kubecdc_journal_blocked", "1 while writes to the journal are blocked; /readyz has the reason.",
		condition.JournalFull, condition.JournalDiskLow, condition.JournalDiskFull, condition.JournalBroken),
	codeMetric("kubecdc_journal_dead_letters_full", "1 while no dead letter more is taken, so that a change that is refused for ever waits in its lane.",
		condition.DeadLettersFull),
	codeMetric("kubecdc_journal_recovered", "1 if a broken journal was set aside when the process started.", condition.JournalRecovered),
	{"kubecdc_discovery_known", "1 when it is known what the API server serves; 0 since the start until it has answered.", nil,
		func(s Snapshot, emit emit) {
			asked := s.conditionsOf("discovery")
			emit(boolToFloat(countCodes(asked, condition.DiscoveryPending, condition.APIServerUnreachable) == 0))
		}},
	{"kubecdc_namespace_missing", "1 while a namespace that a rule names does not exist; no series where that is not known.", []string{"name"},
		func(s Snapshot, emit emit) { // a label "namespace" would be that of the scraped Pod
			for _, c := range s.conditionsOf("namespace") {
				if c.Code != condition.NamespaceUnknown {
					emit(boolToFloat(c.Code == condition.NamespaceMissing), c.Members[0])
				}
			}
		}},
	{"kubecdc_resources", "Resources that are selected, by state. Where all are unreachable, the API server is.", []string{"state"},
		func(s Snapshot, emit emit) {
			in := map[source.State]int{}
			for _, r := range s.Resources {
				in[r.State]++
			}
			for _, state := range source.States {
				emit(float64(in[state]), string(state))
			}
		}},
	{"kubecdc_resource_state", "1 for the state the resource is in, 0 for every other one.", []string{"resource", "state"},
		func(s Snapshot, emit emit) {
			for _, r := range s.Resources {
				for _, state := range source.States {
					emit(boolToFloat(state == r.State), r.Scope, string(state))
				}
			}
		}},
	{"kubecdc_rule_dropped_total", "Changes that a rule does not emit, by reason: filter, or unchanged (onlyIfChanged, ignoreChanges).", []string{"rule", "reason"},
		func(s Snapshot, emit emit) {
			for _, r := range s.Rules {
				emit(float64(r.Filtered), r.Name, "filter")
				emit(float64(r.Unchanged), r.Name, "unchanged")
			}
		}},
	{"kubecdc_sink_lane_failing_since_seconds", "When a lane began to fail; a hundred lanes of a sink at most.", []string{"sink", "lane", "code"},
		func(s Snapshot, emit emit) {
			for _, k := range s.Sinks {
				for _, lane := range k.FailingLanes {
					emit(unixSeconds(lane.Since), k.Name, lane.Members[0], string(lane.Code))
				}
			}
		}},
	{"kubecdc_sink_watermark_timestamp_seconds", "When the newest watermark of a resource was made that every lane of the sink has; time() minus this is its age. " +
		"Before the first, when the configuration became active. No series without watermarks.", []string{"sink", "resource"},
		func(s Snapshot, emit emit) {
			for _, k := range s.Sinks {
				for resource, at := range k.Watermarks {
					emit(unixSeconds(at), k.Name, resource)
				}
			}
		}},
	{"kubecdc_audit_degraded", "1 while audit events are missing from some or all sources; /readyz has the reason.", nil,
		func(s Snapshot, emit emit) {
			if s.Audit != nil {
				emit(boolToFloat(!worstOf(s.conditionsOf("audit")).OK()))
			}
		}},
}

// seriesOf returns the labels of a condition.
func seriesOf(c condition.Status) [3]string {
	return [...]string{string(c.Code), c.Component, c.Severity.String()}
}

// codeMetric is 1 while the exporter has one of these codes, and 0 otherwise.
func codeMetric(name, help string, codes ...condition.Code) metric {
	return metric{name, help, nil, func(s Snapshot, emit emit) {
		emit(boolToFloat(countCodes(s.Conditions, codes...) > 0))
	}}
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1e3
}

// collector makes metrics of one snapshot per scrape.
type collector struct {
	snapshot func() Snapshot
	descs    map[string]*prometheus.Desc // by name
}

func newCollector(snapshot func() Snapshot) *collector {
	c := &collector{snapshot, map[string]*prometheus.Desc{}}
	for _, m := range metrics {
		c.descs[m.name] = prometheus.NewDesc(m.name, m.help, m.labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	emit := func(name string, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], valueType(name), value, labels...)
	}
	s := c.snapshot()
	emitFields(reflect.ValueOf(s), nil, emit)
	for _, m := range derivedMetrics {
		m.values(s, func(value float64, labels ...string) { emit(m.name, value, labels...) })
	}
}

// valueType returns the type of a family.
func valueType(name string) prometheus.ValueType {
	if strings.HasSuffix(name, "_total") {
		return prometheus.CounterValue
	}
	return prometheus.GaugeValue
}

// The families that are no part of a snapshot. Ages of delivered changes reach from one that is passed on at once to one
// that has waited for an outage.
var (
	publishSeconds = prometheus.HistogramOpts{
		Name:    "kubecdc_sink_publish_seconds",
		Help:    "Duration of calls to the destination, acknowledgement included, failed ones too.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16), // 0.5 ms to 16 s
	}
	deliverySeconds = prometheus.HistogramOpts{
		Name:    "kubecdc_sink_delivery_seconds",
		Help:    "Age of changes when the destination acknowledged them, from the moment they were read from the API server.",
		Buckets: []float64{0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 21600},
	}
	buildInfo = prometheus.GaugeOpts{Name: "kubecdc_build_info", Help: "1, with the version of the exporter and of Go."}
)
