package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

const (
	// readMessages and readBytes bound what one request reads of a stream.
	readMessages = 2000
	readBytes    = 8 << 20
	// maxLookBack bounds the messages that are read to find our newest one behind those of others.
	maxLookBack = 1000
	// applyPause is between two looks at a message that replicas are about to store.
	applyPause = 20 * time.Millisecond
)

// streamClient asks for one stream over one connection.
type streamClient struct {
	link   *connection.Link
	stream string
}

// api asks JetStream something about the stream and decodes the answer. None means that it has no leader, or is not there.
func (c streamClient) api(ctx context.Context, what string, request, answer any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return fmt.Errorf("encode a request about stream %q: %w", c.stream, err)
		}
	}
	a, err := c.link.Repeat(ctx, &nats.Msg{Subject: "$JS.API.STREAM." + what + "." + c.stream, Data: body})
	if err != nil {
		return err
	}
	if a.NoResponder {
		return &sinks.UnavailableError{After: connection.AwayPause, Reason: fmt.Sprintf("nobody answers for stream %q: JetStream is not enabled "+
			"for this account, or has no leader", c.stream), Err: nats.ErrNoResponders}
	}
	if err := json.Unmarshal(a.Data, answer); err != nil {
		return fmt.Errorf("JetStream's answer about stream %q: %w", c.stream, err)
	}
	return nil
}

// info looks the stream up; nil says that it does not exist.
func (c streamClient) info(ctx context.Context) (*streamAnswer, error) {
	found := new(streamAnswer)
	if err := c.api(ctx, "INFO", nil, found); err != nil {
		return nil, err
	}
	switch {
	case found.Error == nil:
		return found, nil
	case found.Error.ErrCode == codeStreamNotFound:
		return nil, nil
	}
	return nil, classify(c.stream, "", found.Error)
}

// existing is info of a stream that is in use.
func (c streamClient) existing(ctx context.Context) (*streamAnswer, error) {
	found, err := c.info(ctx)
	if err == nil && found == nil {
		err = &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q does not exist any more", c.stream), After: connection.AwayPause, Err: nats.ErrNoResponders}
	}
	return found, err
}

// create makes the stream. What the server says against it, but that it exists by now, is in the answer.
func (c streamClient) create(ctx context.Context, config jetstream.StreamConfig) (*streamAnswer, error) {
	made := new(streamAnswer)
	err := c.api(ctx, "CREATE", config, made)
	if err == nil && made.Error != nil && made.Error.ErrCode == codeStreamExists {
		err = fmt.Errorf("another client has just created stream %q: %w", c.stream, made.Error) // the next attempt finds it
	}
	return made, err
}

// get asks the stream's leader for one message. The zero value says that there is none.
func (c streamClient) get(ctx context.Context, request getRequest) (storedMessage, error) {
	var answer struct {
		Error   *apiError     `json:"error"`
		Message storedMessage `json:"message"`
	}
	err := c.api(ctx, "MSG.GET", request, &answer)
	switch {
	case err != nil:
		return storedMessage{}, err
	case answer.Error == nil:
		return answer.Message, nil
	case answer.Error.ErrCode == codeNoMessage || answer.Error.ErrCode == codeStreamNotFound:
		return storedMessage{}, nil
	}
	return storedMessage{}, classify(c.stream, "", answer.Error)
}

// at is get by sequence, of a message that the leader has accepted: it waits until that is stored. The zero value says that it
// is not there any more.
func (c streamClient) at(ctx context.Context, sequence uint64) (storedMessage, error) {
	for begun := time.Now(); ; {
		m, err := c.get(ctx, getRequest{Sequence: sequence})
		if err != nil || m.Sequence != 0 {
			return m, err
		}
		found, err := c.existing(ctx)
		if err != nil || found.State.LastSeq >= sequence {
			return storedMessage{}, err
		}
		if time.Since(begun) > c.link.Timeout() {
			return storedMessage{}, fmt.Errorf("stream %q has accepted message %d and not stored it within %v", c.stream, sequence, c.link.Timeout())
		}
		select {
		case <-time.After(applyPause):
		case <-ctx.Done():
			return storedMessage{}, ctx.Err()
		}
	}
}

// newest returns the newest message between two sequences, both included, that is wanted; the zero value when there is none near the
// end.
func (c streamClient) newest(ctx context.Context, first, last uint64, wanted func(storedMessage) bool) (storedMessage, error) {
	for at, left := last, maxLookBack; at > 0 && at >= first && left > 0; at, left = at-1, left-1 {
		m, err := c.at(ctx, at)
		if err != nil || m.Sequence != 0 && wanted(m) {
			return m, err
		}
	}
	return storedMessage{}, nil
}

// getRequest says which message or messages (ADR-1, ADR-31).
type getRequest struct {
	Sequence uint64 `json:"seq,omitempty"`
	LastOf   string `json:"last_by_subj,omitempty"`
	NextOf   string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// read calls each for the messages from one sequence through another, in order. Any of them may be gone. direct says that the
// stream allows direct access: replicas answer then, many messages at once. What a replica does not have the leader is asked
// for.
func (c streamClient) read(ctx context.Context, from, through uint64, direct bool, each func(storedMessage) error) error {
	for from <= through {
		if direct {
			next, err := c.readSome(ctx, from, through, each)
			if err != nil {
				return err
			}
			if next > from {
				from = next
				continue
			}
		}
		m, err := c.get(ctx, getRequest{Sequence: from, NextOf: ">"})
		if err != nil {
			return err
		}
		if m.Sequence < from || m.Sequence > through {
			return nil
		}
		if err := each(m); err != nil {
			return err
		}
		from = m.Sequence + 1
	}
	return nil
}

// readSome reads what one replica gives, and returns where to go on. It stops where the answers have a gap, as they have
// when the connection is lost meanwhile.
func (c streamClient) readSome(ctx context.Context, from, through uint64, each func(storedMessage) error) (next uint64, err error) {
	body, err := json.Marshal(getRequest{Sequence: from, Batch: readMessages, MaxBytes: readBytes})
	if err != nil {
		return from, fmt.Errorf("encode a request about stream %q: %w", c.stream, err)
	}
	answers := make(chan connection.Answer, readMessages+2)
	subject := "$JS.API.DIRECT.GET." + c.stream
	number := c.link.Begin(connection.Call{Concerns: connection.To(subject), Answer: func(_ string, a connection.Answer) {
		select {
		case answers <- a:
		default: // more than asked for: the gap is seen
		}
	}})
	defer c.link.End(number)
	if err := c.link.Publish(ctx, &nats.Msg{Subject: subject, Reply: c.link.ReplyTo(number), Data: body}); err != nil {
		return from, err
	}
	timeout := time.NewTimer(c.link.Timeout())
	defer timeout.Stop()
	for last := uint64(0); ; {
		select {
		case a := <-answers:
			m, more, err := c.direct(a, last)
			if err != nil || !more {
				return from, err
			}
			if last, from = m.Sequence, m.Sequence+1; m.Sequence > through {
				return from, nil
			}
			if err := each(m); err != nil {
				return from, err
			}
			timeout.Reset(c.link.Timeout())
		case <-timeout.C:
			return from, c.link.Unanswered(subject)
		case <-ctx.Done():
			return from, ctx.Err()
		}
	}
}

// direct reads one answer to a request for many messages, which names the message before it; more is false at their end.
func (c streamClient) direct(a connection.Answer, last uint64) (m storedMessage, more bool, err error) {
	switch {
	case a.Err != nil:
		return m, false, a.Err
	case a.NoResponder:
		return m, false, nil // no replica is ready: the leader knows
	}
	switch status := a.Header.Get("Status"); status {
	case "":
	case strconv.Itoa(http.StatusNoContent), strconv.Itoa(http.StatusNotFound):
		return m, false, nil
	default:
		return m, false, fmt.Errorf("stream %q cannot be read: %s %s", c.stream, status, a.Header.Get("Description"))
	}
	m.Subject, m.decoded, m.Data = a.Header.Get("Nats-Subject"), a.Header, a.Data
	before, err1 := strconv.ParseUint(a.Header.Get("Nats-Last-Sequence"), 10, 64)
	sequence, err2 := strconv.ParseUint(a.Header.Get("Nats-Sequence"), 10, 64)
	at, err3 := time.Parse(time.RFC3339Nano, a.Header.Get("Nats-Time-Stamp"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return m, false, fmt.Errorf("a message of stream %q: %w", c.stream, err)
	}
	m.Sequence, m.Time = sequence, at
	return m, before == last, nil
}
