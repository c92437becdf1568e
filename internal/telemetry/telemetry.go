package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	prometheusbridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// stopTimeout bounds how long Stop waits for the collector.
const stopTimeout = 2 * time.Second

const (
	serviceName = "kubecdc" // unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has another one
	scope       = "github.com/kubecdc/kubecdc"
)

// Options configure a Telemetry. All are required.
type Options struct {
	Version string                   // of the exporter
	Metrics prometheus.Gatherer      // the families that are sent
	Mask    func(text string) string // removes secrets from the texts of spans
	Log     *slog.Logger
}

// Telemetry sends what the environment asks for. Its methods may be called concurrently, and of a nil Telemetry, which sends
// nothing.
type Telemetry struct {
	mask    func(string) string
	tracer  trace.Tracer // nil without traces
	signals []signal
}

// signal is one that the environment asks for.
type signal struct {
	name      string
	condition *condition.Condition
	stop      func(context.Context) error // nil if it could not be started
}

// Start starts sending. It returns nil if the environment asks for nothing. Variables that make no sense are a condition:
// the stream does not depend on them.
func Start(ctx context.Context, o Options) *Telemetry {
	if !isWanted(traces) && !isWanted(metrics) {
		return nil
	}
	otel.SetLogger(logr.FromSlogHandler(o.Log.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { o.Log.Debug("telemetry", "error", err) })) // see recordExport
	t, from := &Telemetry{mask: o.Mask}, describeService(ctx, o.Version)
	t.startSignal(traces, o.Log, func(c *condition.Condition) (func(context.Context) error, error) {
		return t.startTraces(ctx, from, c)
	})
	t.startSignal(metrics, o.Log, func(c *condition.Condition) (func(context.Context) error, error) {
		return startMetrics(ctx, o.Metrics, from, c)
	})
	return t
}

// startSignal starts sending a signal, if that is asked for.
func (t *Telemetry) startSignal(
	name string, log *slog.Logger, start func(*condition.Condition) (stop func(context.Context) error, err error),
) {
	if !isWanted(name) {
		return
	}
	s, err := signal{name: strings.ToLower(name), condition: condition.New(log, "telemetry", condition.Problem{})}, checkVariables(name)
	if err == nil {
		s.stop, err = start(s.condition)
	}
	recordExport(s.condition, err)
	t.signals = append(t.signals, s)
}

// describeService returns the attributes of everything that is sent. Those of the environment go first.
func describeService(ctx context.Context, version string) *resource.Resource {
	about := []attribute.KeyValue{attribute.String("service.name", serviceName), attribute.String("service.version", version)}
	if host, err := os.Hostname(); err == nil { // in a cluster the name of the Pod
		about = append(about, attribute.String("service.instance.id", host))
	}
	made, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(about...), resource.WithFromEnv())
	if err != nil {
		otel.Handle(err) // the attributes that could be read are there
	}
	return made
}

func (t *Telemetry) startTraces(
	ctx context.Context, from *resource.Resource, c *condition.Condition,
) (stop func(context.Context) error, err error) {
	to, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(from), sdktrace.WithBatcher(spanExporter{to, c}))
	t.tracer = provider.Tracer(scope)
	return provider.Shutdown, nil
}

func startMetrics(
	ctx context.Context, of prometheus.Gatherer, from *resource.Resource, c *condition.Condition,
) (stop func(context.Context) error, err error) {
	to, err := otlpmetrichttp.New(ctx)
	if err != nil {
		return nil, err
	}
	bridge := prometheusbridge.NewMetricProducer(prometheusbridge.WithGatherer(of))
	reader := sdkmetric.NewPeriodicReader(metricExporter{to, c}, sdkmetric.WithProducer(bridge))
	return sdkmetric.NewMeterProvider(sdkmetric.WithResource(from), sdkmetric.WithReader(reader)).Shutdown, nil
}

// RecordSpan records an operation that began at a time and has ended now, with err if it failed. The attributes are strings
// or numbers.
func (t *Telemetry) RecordSpan(name string, began time.Time, err error, attributes ...slog.Attr) {
	if t == nil || t.tracer == nil {
		return
	}
	_, span := t.tracer.Start(context.Background(), name, trace.WithTimestamp(began))
	for _, a := range attributes {
		if a.Value.Kind() == slog.KindInt64 {
			span.SetAttributes(attribute.Int64("kubecdc."+a.Key, a.Value.Int64()))
		} else {
			span.SetAttributes(attribute.String("kubecdc."+a.Key, t.mask(a.Value.String())))
		}
	}
	if err != nil {
		span.SetStatus(codes.Error, t.mask(err.Error()))
	}
	span.End()
}

// Conditions returns whether each signal reaches the collector.
func (t *Telemetry) Conditions() (all []condition.Status) {
	if t == nil {
		return nil
	}
	for _, of := range t.signals {
		s := of.condition.Status()
		s.Members = []string{of.name}
		all = append(all, s)
	}
	return all
}

// Stop sends the rest and releases everything. It waits for the collector for at most stopTimeout.
func (t *Telemetry) Stop() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	for _, s := range t.signals {
		if s.stop != nil {
			if err := s.stop(ctx); err != nil {
				otel.Handle(err)
			}
		}
		s.condition.Close()
	}
}

// recordExport records whether what was to be sent has arrived.
func recordExport(c *condition.Condition, err error) {
	switch {
	case err == nil:
		c.Clear()
	case !errors.Is(err, context.Canceled): // the stop ends an export
		c.Update(condition.Problem{Code: condition.TelemetryUnsent, Cause: err.Error()})
	}
}

// spanExporter records the result of each export.
type spanExporter struct {
	sdktrace.SpanExporter
	condition *condition.Condition
}

// ExportSpans implements [sdktrace.SpanExporter].
func (e spanExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	recordExport(e.condition, err)
	return err
}

// metricExporter records the result of each export.
type metricExporter struct {
	sdkmetric.Exporter
	condition *condition.Condition
}

// Export implements [sdkmetric.Exporter].
func (e metricExporter) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	err := e.Exporter.Export(ctx, m)
	recordExport(e.condition, err)
	return err
}

const (
	prefix   = "OTEL_EXPORTER_OTLP_"
	protocol = "http/protobuf" // the one that is implemented, and the default of the specification
)

// The signals, as they are in the names of variables.
const (
	traces  = "TRACES"
	metrics = "METRICS"
)

// isWanted reports whether the environment asks for a signal.
func isWanted(signal string) bool {
	_, endpoint := variable(signal, "ENDPOINT")
	return endpoint != "" && !strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") && os.Getenv("OTEL_"+signal+"_EXPORTER") != "none"
}

// variable returns the value of a setting of a signal, and the variable that it is from: that of the signal goes first.
func variable(signal, setting string) (name, value string) {
	name = prefix + signal + "_" + setting
	if value = os.Getenv(name); value != "" {
		return name, value
	}
	return prefix + setting, os.Getenv(prefix + setting)
}

// checkVariables returns an error if a signal cannot be sent as the environment asks for. The SDK would ignore such a
// variable and use its default.
func checkVariables(signal string) error {
	if name := "OTEL_" + signal + "_EXPORTER"; cmp.Or(os.Getenv(name), "otlp") != "otlp" {
		return fmt.Errorf("%s: found %q, expected otlp or none", name, os.Getenv(name))
	}
	if name, value := variable(signal, "PROTOCOL"); cmp.Or(value, protocol) != protocol {
		return fmt.Errorf("%s: found %q, expected %s; most collectors receive it at port 4318", name, value, protocol)
	}
	name, endpoint := variable(signal, "ENDPOINT")
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		if i := strings.LastIndex(endpoint, "@"); i >= 0 { // before it there may be a password, also where the rest is no URL
			endpoint = "***" + endpoint[i:]
		}
		return fmt.Errorf("%s: found %q, expected a URL such as http://collector:4318", name, endpoint)
	}
	return nil
}

// Secrets returns the values of the headers that the environment defines, which a collector may repeat in an error.
func Secrets() (secrets []string) {
	for _, name := range []string{prefix + "HEADERS", prefix + traces + "_HEADERS", prefix + metrics + "_HEADERS"} {
		for pair := range strings.SplitSeq(os.Getenv(name), ",") {
			_, value, _ := strings.Cut(pair, "=")
			if value = strings.TrimSpace(value); value == "" {
				continue
			}
			secrets = append(secrets, value)
			if plain, err := url.PathUnescape(value); err == nil && plain != value {
				secrets = append(secrets, plain)
			}
		}
	}
	return secrets
}
