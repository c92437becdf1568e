package telemetry

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"strings"
)

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
		return fmt.Errorf("%s: found %q, expected a URL such as http://collector:4318", name, withoutUser(endpoint))
	}
	return nil
}

// withoutUser hides what precedes an @: it may be a password, also where the rest is no URL.
func withoutUser(endpoint string) string {
	if i := strings.LastIndex(endpoint, "@"); i >= 0 {
		return "***" + endpoint[i:]
	}
	return endpoint
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
