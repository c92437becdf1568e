package monitoring

import (
	"bytes"
	"encoding/json"
	"strings"
)

// The dashboard follows the pipeline top down: is anything lost or late, where, why. It is Grafana's own JSON,
// as far as it is needed.
type dashboard struct {
	Title         string         `json:"title"`
	UID           string         `json:"uid"`
	Description   string         `json:"description"`
	Tags          []string       `json:"tags"`
	Editable      bool           `json:"editable"`
	SchemaVersion int            `json:"schemaVersion"`
	Refresh       string         `json:"refresh"`
	Time          map[string]any `json:"time"`
	Timezone      string         `json:"timezone"`
	Templating    struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Links  []link  `json:"links"`
	Panels []panel `json:"panels"`
}

type variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"`
	Query      string      `json:"query"`
	Datasource *datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh"`
	IncludeAll bool        `json:"includeAll"`
	Multi      bool        `json:"multi"`
	AllValue   string      `json:"allValue,omitempty"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type link struct {
	Title       string `json:"title"`
	Type        string `json:"type"`
	URL         string `json:"url"`
	TargetBlank bool   `json:"targetBlank"`
}

type panel struct {
	ID          int            `json:"id"`
	Type        string         `json:"type"`
	Title       string         `json:"title"`
	Description string         `json:"description,omitempty"`
	GridPos     gridPos        `json:"gridPos"`
	Datasource  *datasource    `json:"datasource,omitempty"`
	Targets     []target       `json:"targets,omitempty"`
	FieldConfig *fieldConfig   `json:"fieldConfig,omitempty"`
	Options     map[string]any `json:"options,omitempty"`
	Collapsed   bool           `json:"collapsed,omitempty"`
}

type gridPos struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

type target struct {
	RefID        string      `json:"refId"`
	Expr         string      `json:"expr"`
	LegendFormat string      `json:"legendFormat"`
	Instant      bool        `json:"instant,omitempty"`
	Format       string      `json:"format,omitempty"`
	Datasource   *datasource `json:"datasource"`
}

type fieldConfig struct {
	Defaults  map[string]any `json:"defaults"`
	Overrides []any          `json:"overrides"`
}

// query is one line of a graph.
type query struct{ expr, legend string }

// view is a panel before it has a place. $s in a query stands for the labels that select the exporters that are looked at.
type view struct {
	kind, title, help, unit string
	queries                 []query
	red                     float64 // from which value on a stat is red; 0: never
	redBelow                bool    // it is red below that value
	wide                    int     // columns of 24
}

// section is a row of the dashboard.
type section struct {
	title string
	views []view
}

const selector = `job=~"$job", instance=~"$instance"`

var sections = []section{
	{"Is anything lost or late?", []view{
		{kind: "stat", title: "Ready", unit: "bool_yes_no", red: 1, redBelow: true, wide: 4, help: "What /readyz answers.",
			queries: []query{{`min(kubecdc_ready{$s})`, ""}}},
		{kind: "stat", title: "Lag", unit: "s", red: 60, wide: 4, help: "Age of the oldest change that is read from the journal and not delivered.",
			queries: []query{{`max(kubecdc_sink_lag_seconds{$s})`, ""}}},
		{kind: "stat", title: "Gaps", unit: "short", red: 1, wide: 4, help: "Times the API server had forgotten history, in the time range.",
			queries: []query{{`sum(increase(kubecdc_resource_relists_total{$s}[$__range]))`, ""}}},
		{kind: "stat", title: "Dead letters", unit: "short", red: 1, wide: 4, help: "Changes that a destination refused for ever, in the time range. The journal keeps them.",
			queries: []query{{`sum(increase(kubecdc_sink_dead_letters_total{$s}[$__range]))`, ""}}},
		{kind: "stat", title: "Journal full", unit: "percentunit", red: 0.5, wide: 4, help: "At 100 % nothing is journaled any more.",
			queries: []query{{`max(kubecdc_journal_retained_bytes{$s} / kubecdc_journal_max_bytes{$s})`, ""}}},
		{kind: "stat", title: "Not live", unit: "short", red: 1, wide: 4, help: "Resources that are not watched now.",
			queries: []query{{`sum(kubecdc_resource_state{$s, state!="live"})`, ""}}},
		{kind: "timeseries", title: "From observed to acknowledged", unit: "s", wide: 12, help: "Age of changes when the destination acknowledged them.",
			queries: []query{
				{`histogram_quantile(0.5, sum by (sink, le) (rate(kubecdc_sink_delivery_seconds_bucket{$s}[$__rate_interval])))`, "{{sink}} median"},
				{`histogram_quantile(0.99, sum by (sink, le) (rate(kubecdc_sink_delivery_seconds_bucket{$s}[$__rate_interval])))`, "{{sink}} 99 %"},
			}},
		{kind: "timeseries", title: "Changes in and out", unit: "cps", wide: 12, help: "Read from the API server, and acknowledged by each sink.",
			queries: []query{
				{`sum(rate(kubecdc_resource_changes_total{$s}[$__rate_interval]))`, "made"},
				{`sum by (sink) (rate(kubecdc_sink_delivered_total{$s}[$__rate_interval]))`, "delivered to {{sink}}"},
			}},
	}},
	{"Where: the API server", []view{
		{kind: "timeseries", title: "Resources by state", unit: "short", wide: 8, help: "Live ones are watched; every other state is in docs/operations.md.",
			queries: []query{{`sum by (state) (kubecdc_resource_state{$s})`, "{{state}}"}}},
		{kind: "timeseries", title: "Changes by resource", unit: "cps", wide: 8, help: "The ten resources that change most.",
			queries: []query{{`topk(10, sum by (resource) (rate(kubecdc_resource_changes_total{$s}[$__rate_interval])))`, "{{resource}}"}}},
		{kind: "timeseries", title: "Watches opened again and lists", unit: "cps", wide: 8, help: "Watches end every few minutes; lists are rare after the start.",
			queries: []query{
				{`sum(rate(kubecdc_resource_watch_restarts_total{$s}[$__rate_interval]))`, "watches opened again"},
				{`sum(rate(kubecdc_resource_list_requests_total{$s}[$__rate_interval]))`, "LIST requests"},
			}},
		{kind: "table", title: "Resources that are not live", unit: "short", wide: 24, help: "Empty when all is well.",
			queries: []query{{`kubecdc_resource_state{$s, state!="live"} == 1`, ""}}},
	}},
	{"Where: the journal", []view{
		{kind: "timeseries", title: "What the journal holds", unit: "bytes", wide: 12, help: "Bounded by journal.maxBytes.",
			queries: []query{
				{`kubecdc_journal_retained_bytes{$s}`, "all"},
				{`kubecdc_journal_known_bytes{$s}`, "known objects"},
				{`kubecdc_journal_body_bytes{$s}`, "last states"},
				{`kubecdc_journal_dead_letter_bytes{$s}`, "dead letters"},
				{`kubecdc_journal_max_bytes{$s}`, "bound"},
			}},
		{kind: "timeseries", title: "Commits", unit: "cps", wide: 12, help: "Groups made durable a second: one fsync each.",
			queries: []query{{`rate(kubecdc_journal_commits_total{$s}[$__rate_interval])`, "{{instance}}"}}},
	}},
	{"Where: the sinks", []view{
		{kind: "timeseries", title: "Lag", unit: "s", wide: 8, help: "Age of the oldest change that is read from the journal and not delivered.",
			queries: []query{{`max by (sink) (kubecdc_sink_lag_seconds{$s})`, "{{sink}}"}}},
		{kind: "timeseries", title: "Backlog", unit: "short", wide: 8, help: "Changes in the journal that the sink has not settled.",
			queries: []query{{`sum by (sink) (kubecdc_sink_backlog_changes{$s})`, "{{sink}}"}}},
		{kind: "timeseries", title: "Lanes", unit: "short", wide: 8, help: "Lanes that fail wait for their next attempt, those behind are read from the journal again.",
			queries: []query{
				{`sum by (sink) (kubecdc_sink_lanes_backing_off{$s})`, "{{sink}} failing"},
				{`sum by (sink) (kubecdc_sink_lanes_behind{$s})`, "{{sink}} behind"},
			}},
		{kind: "table", title: "Lanes that fail, and why", unit: "dateTimeFromNow", wide: 24, help: "Of each sink, by code; empty when all is well.",
			queries: []query{{`kubecdc_sink_lane_failing_since_seconds{$s} * 1000`, ""}}},
	}},
	{"Who", []view{
		{kind: "timeseries", title: "Changes by what is known of their author", unit: "cps", wide: 12, help: "Where audit is configured: named or not, and why.",
			queries: []query{
				{`sum(rate(kubecdc_attributed_total{$s}[$__rate_interval]))`, "named"},
				{`sum by (reason) (rate(kubecdc_unresolved_total{$s}[$__rate_interval]))`, "not named: {{reason}}"},
			}},
		{kind: "timeseries", title: "Audit events", unit: "cps", wide: 12, help: "Taken, of strangers, and lost or made to give way.",
			queries: []query{
				{`sum(rate(kubecdc_audit_events_total{$s}[$__rate_interval]))`, "taken"},
				{`sum(rate(kubecdc_audit_refused_total{$s}[$__rate_interval]))`, "refused"},
				{`sum(rate(kubecdc_audit_lost_total{$s}[$__rate_interval]))`, "lost"},
			}},
	}},
	{"Why", []view{
		{kind: "timeseries", title: "Answers of the destination", unit: "s", wide: 8, help: "Duration of calls, acknowledgement included, failed ones too.",
			queries: []query{
				{`histogram_quantile(0.5, sum by (sink, le) (rate(kubecdc_sink_publish_seconds_bucket{$s}[$__rate_interval])))`, "{{sink}} median"},
				{`histogram_quantile(0.99, sum by (sink, le) (rate(kubecdc_sink_publish_seconds_bucket{$s}[$__rate_interval])))`, "{{sink}} 99 %"},
			}},
		{kind: "timeseries", title: "Attempts that failed", unit: "cps", wide: 8, help: "They are made again.",
			queries: []query{{`sum by (sink) (rate(kubecdc_sink_retries_total{$s}[$__rate_interval]))`, "{{sink}}"}}},
		{kind: "timeseries", title: "Sinks that are ready", unit: "bool", wide: 8, help: "0 while nothing gets through to the whole destination.",
			queries: []query{{`min by (sink) (kubecdc_sink_ready{$s})`, "{{sink}}"}}},
		{kind: "timeseries", title: "Memory", unit: "bytes", wide: 8, help: "Of the process, and what its last garbage collection found in use.",
			queries: []query{{`process_resident_memory_bytes{$s}`, "{{instance}} resident"}, {`go_gc_heap_live_bytes{$s}`, "{{instance}} live heap"}}},
		{kind: "timeseries", title: "CPU", unit: "short", wide: 8, help: "Cores in use.",
			queries: []query{{`rate(process_cpu_seconds_total{$s}[$__rate_interval])`, "{{instance}}"}}},
		{kind: "timeseries", title: "Rules and routes", unit: "cps", wide: 8, help: "What filters keep back, and expressions that fail.",
			queries: []query{
				{`sum by (rule, reason) (rate(kubecdc_rule_dropped_total{$s}[$__rate_interval]))`, "{{rule}} {{reason}}"},
				{`sum by (route, sink) (rate(kubecdc_route_dropped_total{$s}[$__rate_interval]))`, "{{route}} keeps from {{sink}}"},
				{`sum by (rule) (rate(kubecdc_rule_filter_errors_total{$s}[$__rate_interval]))`, "{{rule}} fails"},
			}},
	}},
}

var prometheus = &datasource{"prometheus", "${datasource}"}

func dashboardJSON() ([]byte, error) {
	d := dashboard{
		Title: "kubecdc", UID: "kubecdc", Description: "Is anything lost or late, where, and why.", Tags: []string{"kubecdc", "kubernetes"},
		SchemaVersion: 39, Refresh: "30s", Time: map[string]any{"from": "now-1h", "to": "now"}, Timezone: "browser",
		Links:  []link{{"Alerts and what to do", "link", page, true}},
		Panels: panels(),
	}
	d.Templating.List = []variable{
		{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus", Refresh: 1},
		labelVariable("job", "Job", `label_values(kubecdc_build_info, job)`),
		labelVariable("instance", "Exporter", `label_values(kubecdc_build_info{job=~"$job"}, instance)`),
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(d)
	return b.Bytes(), err
}

func labelVariable(name, label, query string) variable {
	return variable{Name: name, Label: label, Type: "query", Query: query, Datasource: prometheus, Refresh: 2, IncludeAll: true, Multi: true, AllValue: ".+"}
}

// panels places the views: each section a row, its views from left to right.
func panels() []panel {
	var all []panel
	y := 0
	for _, s := range sections {
		all = append(all, panel{ID: len(all) + 1, Type: "row", Title: s.title, GridPos: gridPos{1, 24, 0, y}})
		y++
		x, high := 0, 0
		for _, v := range s.views {
			if x+v.wide > 24 {
				x, y = 0, y+high
			}
			high = v.height()
			all = append(all, v.panel(len(all)+1, gridPos{high, v.wide, x, y}))
			x += v.wide
		}
		y += high
	}
	return all
}

func (v view) height() int {
	if v.kind == "stat" {
		return 4
	}
	return 8
}

func (v view) panel(id int, at gridPos) panel {
	p := panel{ID: id, Type: v.kind, Title: v.title, Description: v.help, GridPos: at, Datasource: prometheus, Options: map[string]any{}}
	defaults := map[string]any{"unit": v.unit, "min": 0}
	switch v.kind {
	case "stat":
		defaults["thresholds"] = v.thresholds()
		p.Options = map[string]any{"colorMode": "background", "graphMode": "none", "reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}}}
	case "timeseries":
		p.Options = map[string]any{"legend": map[string]any{"displayMode": "list", "placement": "bottom"}, "tooltip": map[string]any{"mode": "multi"}}
	}
	p.FieldConfig = &fieldConfig{Defaults: defaults, Overrides: []any{}}
	for i, q := range v.queries {
		t := target{RefID: string(rune('A' + i)), Expr: strings.ReplaceAll(q.expr, "$s", selector), LegendFormat: q.legend, Datasource: prometheus}
		if v.kind == "table" {
			t.Instant, t.Format = true, "table"
		}
		p.Targets = append(p.Targets, t)
	}
	return p
}

func (v view) thresholds() any {
	type step struct {
		Color string   `json:"color"`
		Value *float64 `json:"value"` // null is minus infinity
	}
	from := v.red
	steps := []step{{"green", nil}, {"red", &from}}
	if v.redBelow {
		steps = []step{{"red", nil}, {"green", &from}}
	}
	return map[string]any{"mode": "absolute", "steps": steps}
}
