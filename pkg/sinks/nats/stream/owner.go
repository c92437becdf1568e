package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// maxClaims bounds how often one Take tries.
const maxClaims = 8

// ExpectedSubject is the header that names the subject whose last sequence a message expects, where it is not its own
// (ADR-50).
const ExpectedSubject = "Nats-Expected-Last-Subject-Sequence-Subject"

// Owner says in a stream who may write what it belongs to. It is replaced by compare and set: a claim names the sequence
// of the one before.
type Owner struct {
	Group string `json:"group"`
	Owner string `json:"owner"`
	Claim string `json:"claim"` // random, names the claim
	Epoch uint64 `json:"epoch"` // of claims, ascending: tells an older record, out of a backup, from a newer one

	// Process is random, and the same in all claims by which one process renews what it holds: it may have missed the answer
	// to one of them.
	Process string `json:"process,omitempty"`

	Sequence uint64 `json:"-"` // of the record; 0: there is none
}

// Ownership is a record in a stream: where it stands, and how it is written there.
type Ownership struct {
	Client
	Subject string
	Of      string // what it is about, for people: `the state "x"`
	Header  nats.Header
}

// Current reads the record from the stream's leader.
func (o Ownership) Current(ctx context.Context) (Owner, error) {
	m, err := o.Get(ctx, GetRequest{LastOf: o.Subject})
	if err != nil || m.Sequence == 0 {
		return Owner{}, err
	}
	var found Owner
	if err := json.Unmarshal(m.Data, &found); err != nil {
		return Owner{}, fmt.Errorf("message %d of stream %q, which says whose %s is: %w", m.Sequence, o.Name, o.Of, err)
	}
	found.Sequence = m.Sequence
	return found, nil
}

// Take makes a claim the newest. mine is what this process held before; the zero value for nothing. When another process has
// taken over since, it is deposed.
func (o Ownership) Take(ctx context.Context, claim sinks.Claim, mine Owner) (Owner, error) {
	for range maxClaims {
		before, err := o.Current(ctx)
		if err != nil {
			return Owner{}, err
		}
		if before.Group != "" && before.Group != claim.Group {
			return Owner{}, &sinks.UnavailableError{Reason: fmt.Sprintf("%s in stream %q belongs to the exporters of group %q, and this one is of %q; "+
				"give each group its own", o.Of, o.Name, before.Group, claim.Group)}
		}
		if mine.Claim != "" && o.Newer(before, mine) {
			return Owner{}, o.Deposed(before, nil)
		}
		made := Owner{Group: claim.Group, Owner: claim.Owner, Claim: nuid.Next(), Process: cmp.Or(mine.Process, nuid.Next()),
			Epoch: max(before.Epoch, mine.Epoch) + 1}
		data, err := json.Marshal(made)
		if err != nil {
			return Owner{}, fmt.Errorf("encode whose %s is: %w", o.Of, err)
		}
		header := nats.Header{nats.ExpectedLastSubjSeqHdr: {strconv.FormatUint(before.Sequence, 10)}}
		for name, values := range o.Header {
			header[name] = values
		}
		made.Sequence, err = o.Publish(ctx, &nats.Msg{Subject: o.Subject, Header: header, Data: data})
		if !Moved(err) {
			return made, err
		}
	}
	return Owner{}, fmt.Errorf("others claim %s in stream %q at the same time", o.Of, o.Name)
}

// Newer says whether a record is of another process that claimed after mine, or at the same time.
func (o Ownership) Newer(found, mine Owner) bool {
	return found.Sequence != 0 && !found.Same(mine) && found.Epoch >= mine.Epoch
}

// Same says whether one process has made both claims.
func (o Owner) Same(other Owner) bool {
	return o.Claim == other.Claim || o.Process != "" && o.Process == other.Process
}

// Deposed says that another process has claimed what was held.
func (o Ownership) Deposed(by Owner, err error) error {
	return &sinks.DeposedError{Reason: fmt.Sprintf("%q has taken %s over, in stream %q", by.Owner, o.Of, o.Name), Err: err}
}

// Publish sends one message to the stream, whose condition only one copy can meet, and returns its sequence.
func (c Client) Publish(ctx context.Context, m *nats.Msg) (uint64, error) {
	m.Header[nats.ExpectedStreamHdr] = []string{c.Name}
	a, err := c.Link.Repeat(ctx, m)
	if err != nil {
		return 0, err
	}
	r, err := Acknowledged(c.Name, m.Subject, a)
	return r.Sequence, err
}

// Moved says whether a condition of a message does not hold, or cannot be checked while others are on their way.
func Moved(err error) bool {
	var said *Error
	return errors.As(err, &said) && slices.Contains([]int{CodeWrongLastSequence, CodeSequenceInProcess, CodeNotReady}, said.ErrCode)
}
