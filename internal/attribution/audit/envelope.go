package audit

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// Envelope is the form in which a log has audit events.
type Envelope string

// The envelopes.
const (
	EnvelopeAuto       Envelope = "auto"       // whichever of the others a record has
	EnvelopeNone       Envelope = "none"       // events, or lists of them, as an API server writes them
	EnvelopeAzure      Envelope = "azure"      // diagnostic records of AKS, as in an Event Hub
	EnvelopeCloudWatch Envelope = "cloudwatch" // subscription batches of EKS, with or without gzip
)

// Validate returns an error for any other value. Empty stands for auto.
func (e Envelope) Validate() error {
	all := []Envelope{"", EnvelopeAuto, EnvelopeNone, EnvelopeAzure, EnvelopeCloudWatch}
	if !slices.Contains(all, e) {
		return fmt.Errorf("%q; expected auto, none, azure or cloudwatch", string(e))
	}
	return nil
}

func (e Envelope) allows(other Envelope) bool { return e == other || e == EnvelopeAuto || e == "" }

const (
	maxUnpacked = 32 << 20 // of a compressed record, in bytes

	azureCategory    = "kube-audit" // and kube-audit-admin
	cloudWatchStream = "kube-apiserver-audit"
)

// Append appends the audit events of one record or line of a log to events, and returns how much of it is malformed. Other
// logs in the same envelope are skipped. A truncated event is appended as a write by an unknown user at the time of the
// envelope. It does not keep b.
func (e Envelope) Append(events []Event, b []byte) (all []Event, malformed int) {
	if bytes.HasPrefix(b, []byte{0x1f, 0x8b}) && e.allows(EnvelopeCloudWatch) {
		var err error
		if b, err = unpack(b); err != nil {
			return events, 1
		}
	}
	u := unwrapping{envelope: e, events: events}
	for i := rawjson.SkipSpace(b, 0); i < len(b); i = rawjson.SkipSpace(b, i) {
		if i = u.appendValue(b, i); i < 0 {
			break
		}
	}
	return u.events, u.malformed
}

var errTooLarge = errors.New("the record is too large without its compression")

// unpack decompresses one or more gzip members within maxUnpacked.
func unpack(b []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	if err == nil && len(all) > maxUnpacked {
		err = errTooLarge
	}
	return all, err
}

// unwrapping collects the events of one record.
type unwrapping struct {
	envelope  Envelope
	events    []Event
	malformed int
}

// appendValue appends the events of the value at i, and returns the index after it, or a negative index if the rest of b is
// not usable.
func (u *unwrapping) appendValue(b []byte, i int) int {
	if u.envelope.allows(EnvelopeNone) { // one pass for what most logs have
		var e Event
		if end := scanEvent(b, i, &e); end > 0 && e.Stage != "" {
			u.events = append(u.events, e)
			return end
		}
	}
	at := map[string]int{}
	end := scanMembers(b, i, func(key []byte, i int) int {
		switch string(key) {
		case "records", "logEvents", "logStream", "messageType":
			at[string(key)] = i
		}
		return skipValue
	})
	records, isAzure := at["records"]
	_, isCloudWatch := at["messageType"]
	switch {
	case end < 0:
		u.appendText(b[i:], 0)
	case b[i] != '{':
		u.malformed++
	case isAzure && u.envelope.allows(EnvelopeAzure):
		return u.appendAzure(b, records, end)
	case isCloudWatch && u.envelope.allows(EnvelopeCloudWatch):
		return u.appendCloudWatch(b, at, end)
	case u.envelope.allows(EnvelopeNone):
		u.appendEvents(b[i:end])
	default:
		u.malformed++
	}
	return end
}

// appendEvents appends an event or a list as an API server writes it.
func (u *unwrapping) appendEvents(b []byte) {
	all, err := Append(u.events, b)
	if err != nil {
		u.appendText(b, 0)
		return
	}
	u.events = all
}

// appendText appends the event in a text, which may have been truncated. at is the time of its envelope, 0 if it has none.
func (u *unwrapping) appendText(text []byte, at Time) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return
	}
	e, err := Scan(text)
	if err != nil {
		if e = salvage(text, at); !e.IsWrite() {
			u.malformed++
			return
		}
	}
	u.events = append(u.events, e)
}

// appendAzure appends the events of the array at i, each the member properties.log of a record.
func (u *unwrapping) appendAzure(b []byte, i, end int) int {
	scanElements(b, i, func(i int) int {
		var category, log string
		var at Time
		after := scanMembers(b, i, func(key []byte, i int) int {
			switch string(key) {
			case "category":
				category = stringAt(b, i)
			case "time":
				at = parseTime(stringAt(b, i))
			case "properties":
				return scanMembers(b, i, func(key []byte, i int) int {
					if string(key) == "log" {
						log = stringAt(b, i)
					}
					return skipValue
				})
			}
			return skipValue
		})
		if category == azureCategory || category == azureCategory+"-admin" {
			u.appendText([]byte(log), at)
		}
		return after
	})
	return end
}

// appendCloudWatch appends the events of a batch, each the message of one of its log events.
func (u *unwrapping) appendCloudWatch(b []byte, at map[string]int, end int) int {
	events, found := at["logEvents"]
	if stream, named := at["logStream"]; !found || stringAt(b, at["messageType"]) != "DATA_MESSAGE" ||
		named && !strings.HasPrefix(stringAt(b, stream), cloudWatchStream) {
		return end // a control message, or another log of the cluster
	}
	scanElements(b, events, func(i int) int {
		var message string
		var ms int
		after := scanMembers(b, i, func(key []byte, i int) int {
			switch string(key) {
			case "message":
				message = stringAt(b, i)
			case "timestamp":
				ms = intAt(b, i)
			}
			return skipValue
		})
		u.appendText([]byte(message), Time(ms)*1e6)
		return after
	})
	return end
}

// salvage returns what is known of a truncated event: which write it was, and when. Its user and its effect are not.
func salvage(text []byte, at Time) Event {
	var e Event
	s := eventScan{Event: &e}
	scanMembers(text, 0, func(key []byte, i int) int { return s.scanMember(text, string(key), i) })
	if string(s.version) != apiVersion || e.Name == "" {
		return Event{}
	}
	cut := Event{
		ID: e.ID, Stage: e.Stage, Verb: e.Verb, Code: e.Code, Truncated: true,
		Group: e.Group, Resource: e.Resource, Subresource: e.Subresource, Namespace: e.Namespace, Name: e.Name,
		Received: e.Received, Done: max(e.Done, at),
	}
	if s.failed {
		cut.Outcome = NotStored
	}
	if cut.Code < 100 {
		cut.Code = 200 // truncated before its end: the write may have succeeded
	}
	return cut
}
