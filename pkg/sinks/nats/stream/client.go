package stream

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
	// storePollInterval is between two looks at a message that replicas are about to store.
	storePollInterval = 20 * time.Millisecond
)

// Client asks for one stream over one connection.
type Client struct {
	Link *connection.Link
	Name string
}

// callAPI asks JetStream something about the stream and decodes the answer. None means that it has no leader, or is not there.
func (c Client) callAPI(ctx context.Context, what string, request, answer any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return fmt.Errorf("encode a request about stream %q: %w", c.Name, err)
		}
	}
	a, err := c.Link.RequestUntilAnswered(ctx, &nats.Msg{Subject: "$JS.API.STREAM." + what + "." + c.Name, Data: body})
	if err != nil {
		return err
	}
	if a.NoResponders {
		return &sinks.UnavailableError{After: connection.UnavailablePause, Reason: fmt.Sprintf("nobody answers for stream %q: JetStream is not enabled "+
			"for this account, or has no leader", c.Name), Err: nats.ErrNoResponders}
	}
	if err := json.Unmarshal(a.Data, answer); err != nil {
		return fmt.Errorf("JetStream's answer about stream %q: %w", c.Name, err)
	}
	return nil
}

// Info looks the stream up; nil says that it does not exist. What a server says that may lack what was acknowledged is an
// error.
func (c Client) Info(ctx context.Context) (*Info, error) {
	found := new(Info)
	if err := c.callAPI(ctx, "INFO", nil, found); err != nil {
		return nil, err
	}
	switch {
	case found.Error == nil:
		return found, checkLeader(c.Name, found.Cluster)
	case found.Error.ErrCode == CodeStreamNotFound:
		return nil, nil
	}
	return nil, ClassifyError(c.Name, "", found.Error)
}

// RequireInfo is Info of a stream that is in use: that there is none is an error.
func (c Client) RequireInfo(ctx context.Context) (*Info, error) {
	found, err := c.Info(ctx)
	if err == nil && found == nil {
		err = &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q does not exist any more", c.Name), After: connection.UnavailablePause, Err: nats.ErrNoResponders}
	}
	return found, err
}

// Create makes the stream. What the server says against it, but that it exists by now, is in the answer.
func (c Client) Create(ctx context.Context, config jetstream.StreamConfig) (*Info, error) {
	made := new(Info)
	err := c.callAPI(ctx, "CREATE", config, made)
	if err == nil && made.Error != nil && made.Error.ErrCode == CodeStreamExists {
		err = fmt.Errorf("another client has just created stream %q: %w", c.Name, made.Error) // the next attempt finds it
	}
	return made, err
}

// Get asks the stream's leader for one message. The zero value says that there is none.
func (c Client) Get(ctx context.Context, request GetRequest) (Message, error) {
	var answer struct {
		Error   *Error  `json:"error"`
		Message Message `json:"message"`
	}
	err := c.callAPI(ctx, "MSG.GET", request, &answer)
	switch {
	case err != nil:
		return Message{}, err
	case answer.Error == nil:
		return answer.Message, nil
	case answer.Error.ErrCode == CodeNoMessage || answer.Error.ErrCode == CodeStreamNotFound:
		return Message{}, nil
	}
	return Message{}, ClassifyError(c.Name, "", answer.Error)
}

// getStored is get by sequence, of a message that the leader has accepted: it waits until that is stored. The zero value says that
// it is not there any more.
func (c Client) getStored(ctx context.Context, sequence uint64) (Message, error) {
	for begun := time.Now(); ; {
		m, err := c.Get(ctx, GetRequest{Sequence: sequence})
		if err != nil || m.Sequence != 0 {
			return m, err
		}
		found, err := c.RequireInfo(ctx)
		if err != nil || found.State.LastSeq >= sequence {
			return Message{}, err
		}
		if time.Since(begun) > c.Link.Timeout() {
			return Message{}, fmt.Errorf("stream %q has accepted message %d and not stored it within %v", c.Name, sequence, c.Link.Timeout())
		}
		select {
		case <-time.After(storePollInterval):
		case <-ctx.Done():
			return Message{}, ctx.Err()
		}
	}
}

// FindNewest returns the newest message between two sequences, both included, that is wanted; the zero value when there is none
// near the end.
func (c Client) FindNewest(ctx context.Context, first, last uint64, wanted func(Message) bool) (Message, error) {
	for at, left := last, maxLookBack; at > 0 && at >= first && left > 0; at, left = at-1, left-1 {
		m, err := c.getStored(ctx, at)
		if err != nil || m.Sequence != 0 && wanted(m) {
			return m, err
		}
	}
	return Message{}, nil
}

// Info is what JetStream says about a stream, found or just made ($JS.API.STREAM.INFO and CREATE, ADR-1).
type Info struct {
	Error   *Error                 `json:"error"`
	Config  jetstream.StreamConfig `json:"config"`
	Created time.Time              `json:"created"`
	Cluster *jetstream.ClusterInfo `json:"cluster"`
	State   struct {
		FirstSeq  uint64    `json:"first_seq"`
		LastSeq   uint64    `json:"last_seq"`
		Messages  int64     `json:"messages"`
		Bytes     int64     `json:"bytes"`
		FirstTime time.Time `json:"first_ts"`
	} `json:"state"`
}

// GetRequest says which message or messages (ADR-1, ADR-31).
type GetRequest struct {
	Sequence uint64 `json:"seq,omitempty"`
	LastOf   string `json:"last_by_subj,omitempty"`
	NextOf   string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// ReadRange calls each for the messages from one sequence through another, in order. Any of them may be gone. direct says that
// the stream allows direct access: replicas answer then, many messages at once. What a replica does not have the leader is
// asked for. Mirrors of the stream answer, too, and may lack any messages: as soon as one does, only the leader is asked.
func (c Client) ReadRange(ctx context.Context, from, through uint64, direct bool, each func(Message) error) error {
	for from <= through {
		if direct {
			next, err := c.readDirect(ctx, from, through, each)
			if direct = !errors.Is(err, errFromMirror); direct && err != nil {
				return err
			}
			if next > from {
				from = next
				continue
			}
		}
		m, err := c.Get(ctx, GetRequest{Sequence: from, NextOf: ">"})
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

// errFromMirror says that a mirror answered in place of the stream.
var errFromMirror = errors.New("a mirror answers")

// readDirect reads what one replica gives, and returns where to go on. It stops where the answers have a gap, as they have
// when the connection is lost meanwhile.
func (c Client) readDirect(ctx context.Context, from, through uint64, each func(Message) error) (next uint64, err error) {
	body, err := json.Marshal(GetRequest{Sequence: from, Batch: readMessages, MaxBytes: readBytes})
	if err != nil {
		return from, fmt.Errorf("encode a request about stream %q: %w", c.Name, err)
	}
	answers := make(chan connection.Answer, readMessages+2)
	subject := "$JS.API.DIRECT.GET." + c.Name
	number := c.Link.StartCall(connection.Call{SentTo: connection.SubjectIs(subject), OnAnswer: func(_ string, a connection.Answer) {
		select {
		case answers <- a:
		default: // more than asked for: the gap is seen
		}
	}})
	defer c.Link.EndCall(number)
	if err := c.Link.Publish(ctx, &nats.Msg{Subject: subject, Reply: c.Link.ReplySubject(number), Data: body}); err != nil {
		return from, err
	}
	timeout := time.NewTimer(c.Link.Timeout())
	defer timeout.Stop()
	for last := uint64(0); ; {
		select {
		case a := <-answers:
			m, more, err := c.parseDirect(a, last)
			if err != nil || !more {
				return from, err
			}
			if last, from = m.Sequence, m.Sequence+1; m.Sequence > through {
				return from, nil
			}
			if err := each(m); err != nil {
				return from, err
			}
			timeout.Reset(c.Link.Timeout())
		case <-timeout.C:
			return from, c.Link.UnansweredError(subject)
		case <-ctx.Done():
			return from, ctx.Err()
		}
	}
}

// parseDirect reads one answer to a request for many messages, which names the message before it; more is false at their end.
func (c Client) parseDirect(a connection.Answer, last uint64) (m Message, more bool, err error) {
	switch {
	case a.Err != nil:
		return m, false, a.Err
	case a.NoResponders:
		return m, false, nil // no replica is ready: the leader knows
	}
	switch status := a.Header.Get("Status"); status {
	case "":
	case strconv.Itoa(http.StatusNoContent), strconv.Itoa(http.StatusNotFound):
		return m, false, nil
	default:
		return m, false, fmt.Errorf("stream %q cannot be read: %s %s", c.Name, status, a.Header.Get("Description"))
	}
	if a.Header.Get("Nats-Stream") != c.Name {
		return m, false, errFromMirror
	}
	m.Subject, m.decoded, m.Data = a.Header.Get("Nats-Subject"), a.Header, a.Data
	before, err1 := strconv.ParseUint(a.Header.Get("Nats-Last-Sequence"), 10, 64)
	sequence, err2 := strconv.ParseUint(a.Header.Get("Nats-Sequence"), 10, 64)
	at, err3 := time.Parse(time.RFC3339Nano, a.Header.Get("Nats-Time-Stamp"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return m, false, fmt.Errorf("a message of stream %q: %w", c.Name, err)
	}
	m.Sequence, m.Time = sequence, at
	return m, before == last, nil
}
