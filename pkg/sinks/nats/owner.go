package nats

import (
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

// expectedSubject is the header that names the subject whose last sequence a message expects, where it is not its own (ADR-50).
const expectedSubject = "Nats-Expected-Last-Subject-Sequence-Subject"

// ownerRecord says in a stream who may write what it belongs to. It is replaced by compare and set: a claim names the sequence
// of the one before.
type ownerRecord struct {
	Group string `json:"group"`
	Owner string `json:"owner"`
	Claim string `json:"claim"` // random, names the claim
	Epoch uint64 `json:"epoch"` // of claims, ascending: tells an older record, out of a backup, from a newer one

	sequence uint64 // 0: there is none
}

// ownership is a record in a stream: where it stands, and how it is written there.
type ownership struct {
	streamClient
	subject string
	of      string // what it is about, for people: `the state "x"`
	header  nats.Header
}

// current reads the record from the stream's leader.
func (o ownership) current(ctx context.Context) (ownerRecord, error) {
	m, err := o.get(ctx, getRequest{LastOf: o.subject})
	if err != nil || m.Sequence == 0 {
		return ownerRecord{}, err
	}
	var found ownerRecord
	if err := json.Unmarshal(m.Data, &found); err != nil {
		return ownerRecord{}, fmt.Errorf("message %d of stream %q, which says whose %s is: %w", m.Sequence, o.stream, o.of, err)
	}
	found.sequence = m.Sequence
	return found, nil
}

// take makes a claim the newest. mine is what this process held before; the zero value for nothing. When another process has
// taken over since, it is deposed.
func (o ownership) take(ctx context.Context, claim sinks.Claim, mine ownerRecord) (ownerRecord, error) {
	for range maxStarts {
		before, err := o.current(ctx)
		if err != nil {
			return ownerRecord{}, err
		}
		if before.Group != "" && before.Group != claim.Group {
			return ownerRecord{}, &sinks.UnavailableError{Reason: fmt.Sprintf("%s in stream %q belongs to the exporters of group %q, and this one is of %q; "+
				"give each group its own", o.of, o.stream, before.Group, claim.Group)}
		}
		if mine.Claim != "" && o.newer(before, mine) {
			return ownerRecord{}, o.deposed(before, nil)
		}
		made := ownerRecord{Group: claim.Group, Owner: claim.Owner, Claim: nuid.Next(), Epoch: max(before.Epoch, mine.Epoch) + 1}
		data, err := json.Marshal(made)
		if err != nil {
			return ownerRecord{}, fmt.Errorf("encode whose %s is: %w", o.of, err)
		}
		header := nats.Header{nats.ExpectedLastSubjSeqHdr: {strconv.FormatUint(before.sequence, 10)}}
		for name, values := range o.header {
			header[name] = values
		}
		made.sequence, err = o.publish(ctx, &nats.Msg{Subject: o.subject, Header: header, Data: data})
		if !moved(err) {
			return made, err
		}
	}
	return ownerRecord{}, fmt.Errorf("others claim %s in stream %q at the same time", o.of, o.stream)
}

// newer says whether a record is of another process that claimed after mine, or at the same time.
func (o ownership) newer(found, mine ownerRecord) bool {
	return found.sequence != 0 && found.Claim != mine.Claim && found.Epoch >= mine.Epoch
}

func (o ownership) deposed(by ownerRecord, err error) error {
	return &sinks.DeposedError{Reason: fmt.Sprintf("%q has taken %s over, in stream %q", by.Owner, o.of, o.stream), Err: err}
}

// publish sends one message to the stream, whose condition only one copy can meet, and returns its sequence.
func (c streamClient) publish(ctx context.Context, m *nats.Msg) (uint64, error) {
	m.Header[nats.ExpectedStreamHdr] = []string{c.stream}
	a, err := c.link.Repeat(ctx, m)
	if err != nil {
		return 0, err
	}
	r, err := acknowledged(c.stream, m.Subject, a)
	return r.Sequence, err
}

// moved says whether a condition of a message does not hold, or cannot be checked while others are on their way.
func moved(err error) bool {
	var said *apiError
	return errors.As(err, &said) && slices.Contains([]int{codeWrongLastSequence, codeSequenceInProcess, codeNotReady}, said.ErrCode)
}
