package admin

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// metric is a family that is no field of the snapshot. A name with the suffix "_total" is a counter, any other one a gauge.
type metric struct {
	name   string
	help   string
	labels []string
	values func(s Snapshot, emit emit) // calls emit once a series
}

type emit = func(value any, labels ...string)

// walkFields calls visit for each series of the tagged fields in a value, see Snapshot, with the names and the values of its
// labels. A label comes before the fields that it is for.
func walkFields(v reflect.Value, names, labels []string, visit func(tag reflect.StructTag, names, labels []string, value any)) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			walkFields(v.Index(i), names, labels, visit)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			walkFields(v.Elem(), names, labels, visit)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			tag, field := v.Type().Field(i).Tag, v.Field(i)
			if name := tag.Get("label"); name != "" {
				names, labels = append(slices.Clip(names), name), append(slices.Clip(labels), field.String())
			}
			switch by := tag.Get("by"); {
			case tag.Get("metric") == "" && v.Type().Field(i).IsExported():
				walkFields(field, names, labels, visit)
			case by != "":
				for key, of := range field.Seq2() {
					visit(tag, append(slices.Clip(names), by), append(slices.Clip(labels), key.String()), of.Interface())
				}
			case tag.Get("metric") != "":
				visit(tag, names, labels, field.Interface())
			}
		}
	default: // no fields
	}
}

// floatOf returns a number; of a time or a duration its seconds, and 1 for true.
func floatOf(value any) float64 {
	switch of := value.(type) {
	case time.Time:
		if of.IsZero() {
			return 0
		}
		return float64(of.UnixMilli()) / 1e3
	case time.Duration:
		return of.Seconds()
	case bool:
		if of {
			return 1
		}
		return 0
	}
	return reflect.ValueOf(value).Convert(reflect.TypeFor[float64]()).Float()
}

// derivedMetrics are the families that are no fields. docs/metrics.md is written from them and from the tags.
var derivedMetrics = []metric{
	{"kubecdc_ready", "1 when the exporter is ready; /readyz has the reasons if it is not.", nil, func(s Snapshot, emit emit) {
		emit(s.isReady())
	}},
	{"kubecdc_condition", "What is wrong: how many parts of the component, such as resources or lanes, it concerns. No series while nothing is; docs/conditions.md has the codes.",
		[]string{"code", "component", "severity"}, func(s Snapshot, emit emit) {
			for _, c := range condition.Summarize(s.Conditions) {
				emit(max(1, len(c.Members)), string(c.Code), c.Component, c.Severity.String())
			}
		}},
	{"kubecdc_condition_deadline_timestamp_seconds", "When history begins to get lost unless the condition ends; the time is estimated. No series without such a condition.",
		[]string{"code", "component", "severity"}, func(s Snapshot, emit emit) {
			for _, c := range condition.Summarize(s.Conditions) {
				if !c.Deadline.IsZero() {
					emit(c.Deadline, string(c.Code), c.Component, c.Severity.String())
				}
			}
		}},
	{"kubecdc_active", "1 if this process is active; 0 while it is a standby, takes over, or has not renewed the Lease within election.duration.", nil,
		func(s Snapshot, emit emit) {
			emit(s.isActive() && (s.Replica == nil || !s.Replica.Unproven))
		}},
	{"kubecdc_config_info", "1, with the first 12 digits of the SHA-256 of the configuration's file that works.", []string{"hash"},
		func(s Snapshot, emit emit) { emit(1, s.Config.Hash) }},
	{"kubecdc_namespace_missing", "1 while a namespace that a rule names does not exist; no series where that is not known.", []string{"name"},
		func(s Snapshot, emit emit) { // a label "namespace" would be that of the scraped Pod
			for _, c := range s.conditionsOf("namespace") {
				if c.Code != condition.NamespaceUnknown {
					emit(c.Code == condition.NamespaceMissing, c.Members[0])
				}
			}
		}},
	{"kubecdc_rule_paused", "1 while a signal has paused the rule of this name: nothing of it is read; no series of rules without a name.", []string{"rule"},
		func(s Snapshot, emit emit) {
			for _, c := range s.conditionsOf("rule") {
				emit(c.Code == condition.RulePaused, strings.TrimPrefix(c.Component, "rule/"))
			}
		}},
	{"kubecdc_resource_state", "1 for the state the resource is in, 0 for every other one.", []string{"resource", "state"},
		func(s Snapshot, emit emit) {
			for _, r := range s.Resources {
				for _, state := range source.States {
					emit(state == r.State, r.Scope, string(state))
				}
			}
		}},
	{"kubecdc_sink_lane_failing_since_seconds", "When lanes began to fail with this code, while other lanes deliver.", []string{"sink", "code"},
		func(s Snapshot, emit emit) {
			for _, k := range s.Sinks {
				for _, lanes := range k.FailingLanes {
					emit(lanes.Since, k.Name, string(lanes.Code))
				}
			}
		}},
}

// collector makes metrics of one snapshot per scrape.
type collector struct {
	snapshot func() Snapshot
	descs    sync.Map // *prometheus.Desc by the name of the family
}

// Describe implements prometheus.Collector. The families follow from the snapshot.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	emit := func(name, help string, names []string, value any, labels []string) {
		desc, known := c.descs.Load(name)
		if !known {
			desc, _ = c.descs.LoadOrStore(name, prometheus.NewDesc(name, help, names, nil))
		}
		ch <- prometheus.MustNewConstMetric(desc.(*prometheus.Desc), valueType(name), floatOf(value), labels...)
	}
	s := c.snapshot()
	walkFields(reflect.ValueOf(s), nil, nil, func(tag reflect.StructTag, names, labels []string, value any) {
		emit(tag.Get("metric"), tag.Get("help"), names, value, labels)
	})
	for _, m := range derivedMetrics {
		m.values(s, func(value any, labels ...string) { emit(m.name, m.help, m.labels, value, labels) })
	}
}

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
