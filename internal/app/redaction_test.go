package app

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// TestEditedRedactionForgetsTheObjectsOfEvents: what an Event has of its object was redacted by a rule that may have changed
// since. Members of those names in other types are their own.
func TestEditedRedactionForgetsTheObjectsOfEvents(t *testing.T) {
	const event1 = `{"kind":"Event","involvedObject":{"kind":"Pod","name":"p","labels":{"a":"b"},"annotations":{"token":"t"}},"reason":"R"}`
	const forgotten = `{"kind":"Event","involvedObject":{"kind":"Pod","name":"p","unknown":"the redaction has changed since"},"reason":"R"}`
	for resource, want := range map[event.Resource]string{
		{Resource: "events"}:                         forgotten,
		{Group: "events.k8s.io", Resource: "events"}: forgotten,
		{Group: "example.com", Resource: "events"}:   event1,
	} {
		before, after := []byte(nil), []byte(event1)
		if is := forgetInvolved(resource, &before, &after); is != (want == forgotten) || string(after) != want || before != nil {
			t.Errorf("%s: %t, %s", resource, is, after)
		}
	}
}
