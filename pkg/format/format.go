package format

import (
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Format is a form in which a sink writes changes. Its zero value is [JSON].
type Format uint8

// The formats. Their names are those of the configuration and of docs/events.md.
const (
	// JSON is the native form, see [AppendJSON].
	JSON Format = iota
	// CloudEvents is a CloudEvent 1.0 in binary mode: the value is the data, which is the native form, and [Attributes]
	// stand beside it as headers. The value is never empty: without data, a CloudEvent in Kafka would be a tombstone.
	CloudEvents
	// CloudEventsStructured is a CloudEvent 1.0 in the JSON event format: attributes and data in one object.
	CloudEventsStructured
)

var names = [...]string{JSON: "json", CloudEvents: "cloudevents", CloudEventsStructured: "cloudevents-structured"}

// Parse returns the format of that name.
func Parse(name string) (Format, error) {
	for f, known := range names {
		if name == known {
			return Format(f), nil
		}
	}
	return JSON, fmt.Errorf("%q is no format; expected json, cloudevents or cloudevents-structured", name)
}

// String returns the name of f.
func (f Format) String() string { return names[f] }

// ContentType is the media type of what [Format.AppendValue] writes.
func (f Format) ContentType() string {
	if f == CloudEventsStructured {
		return ContentTypeCloudEvents
	}
	return ContentTypeJSON
}

// AppendValue appends c, as the value of a record or the payload of a message, to b and returns the extended slice. It is
// always one JSON object without a newline outside the bodies.
func (f Format) AppendValue(b []byte, c *event.Change) []byte {
	if f == CloudEventsStructured {
		return appendCloudEvent(b, c)
	}
	return AppendJSON(b, c)
}
