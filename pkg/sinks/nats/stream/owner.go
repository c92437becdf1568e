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

// maxClaimAttempts bounds how often one Take tries.
const maxClaimAttempts = 8

// HeaderExpectedSubject is the header that names the subject whose last sequence a message expects, where it is not its own
// (ADR-50).
const HeaderExpectedSubject = "Nats-Expected-Last-Subject-Sequence-Subject"

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
	Subject     string
	Description string // what it is about, for people: `the state "x"`
	Header      nats.Header
}

// Current reads the record from the stream's leader.
func (o Ownership) Current(ctx context.Context) (Owner, error) {
	m, err := o.Get(ctx, GetRequest{LastOf: o.Subject})
	if err != nil || m.Sequence == 0 {
		return Owner{}, err
	}
	var found Owner
	if err := json.Unmarshal(m.Data, &found); err != nil {
		return Owner{}, fmt.Errorf("message %d of stream %q, which says whose %s is: %w", m.Sequence, o.Name, o.Description, err)
	}
	found.Sequence = m.Sequence
	return found, nil
}

// Claim makes a claim the newest. mine is what this process held before; the zero value for nothing. When another process has
// taken over since, it is deposed.
func (o Ownership) Claim(ctx context.Context, claim sinks.Claim, mine Owner) (Owner, error) {
	for range maxClaimAttempts {
		before, err := o.Current(ctx)
		if err != nil {
			return Owner{}, err
		}
		if before.Group != "" && before.Group != claim.Group {
			return Owner{}, &sinks.UnavailableError{Reason: fmt.Sprintf("%s in stream %q belongs to the exporters of group %q, and this one is of %q; "+
				"give each group its own", o.Description, o.Name, before.Group, claim.Group)}
		}
		if mine.Claim != "" && o.IsNewer(before, mine) {
			return Owner{}, o.DeposedError(before, nil)
		}
		made := Owner{Group: claim.Group, Owner: claim.Owner, Claim: nuid.Next(), Process: cmp.Or(mine.Process, nuid.Next()),
			Epoch: max(before.Epoch, mine.Epoch) + 1}
		data, err := json.Marshal(made)
		if err != nil {
			return Owner{}, fmt.Errorf("encode whose %s is: %w", o.Description, err)
		}
		header := nats.Header{nats.ExpectedLastSubjSeqHdr: {strconv.FormatUint(before.Sequence, 10)}}
		for name, values := range o.Header {
			header[name] = values
		}
		made.Sequence, err = o.Publish(ctx, &nats.Msg{Subject: o.Subject, Header: header, Data: data})
		if !ConditionFailed(err) {
			return made, err
		}
	}
	return Owner{}, fmt.Errorf("others claim %s in stream %q at the same time", o.Description, o.Name)
}

// IsNewer says whether a record is of another process that claimed after mine, or at the same time.
func (o Ownership) IsNewer(found, mine Owner) bool {
	return found.Sequence != 0 && !found.SameProcess(mine) && found.Epoch >= mine.Epoch
}

// SameProcess says whether one process has made both claims.
func (o Owner) SameProcess(other Owner) bool {
	return o.Claim == other.Claim || o.Process != "" && o.Process == other.Process
}

// DeposedError says that another process has claimed what was held.
func (o Ownership) DeposedError(by Owner, err error) error {
	return &sinks.DeposedError{Reason: fmt.Sprintf("%q has taken %s over, in stream %q", by.Owner, o.Description, o.Name), Err: err}
}

// Publish sends one message to the stream, whose condition only one copy can meet, and returns its sequence.
func (c Client) Publish(ctx context.Context, m *nats.Msg) (uint64, error) {
	m.Header[nats.ExpectedStreamHdr] = []string{c.Name}
	a, err := c.Link.RequestUntilAnswered(ctx, m)
	if err != nil {
		return 0, err
	}
	r, err := ParseReceipt(c.Name, m.Subject, a)
	return r.Sequence, err
}

// ConditionFailed says whether a condition of a message does not hold, or cannot be checked while others are on their way.
func ConditionFailed(err error) bool {
	var said *Error
	return errors.As(err, &said) && slices.Contains([]int{CodeWrongLastSequence, CodeSequenceInProcess, CodeNotReady}, said.ErrCode)
}
