package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

// maxLeaderSilence is the time without contact to a majority of replicas after which a leader is not trusted. A leader
// contacts its followers every second; they elect another one after four seconds or more without contact (nats-server,
// minElectionTimeoutDefault).
const maxLeaderSilence = 3 * time.Second

// checkLeader returns nil if the server that answered leads the stream and is in contact with half of the other replicas or
// more. Only then does it know all acknowledged messages. Others answer, too: a leader that is separated from its followers
// continues for ten seconds and more, and without a leader each replica answers for itself (DESIGN.md of the NATS sink).
func checkLeader(stream string, cluster *jetstream.ClusterInfo) error {
	if cluster == nil { // a single server
		return nil
	}
	if cluster.Leader == "" {
		return unknownEndError(stream, "no server leads it")
	}
	var silent []string
	for _, r := range cluster.Replicas {
		if r.Active == 0 || r.Active > maxLeaderSilence { // 0: no contact yet
			silent = append(silent, r.Name)
		}
	}
	if len(silent)*2 <= len(cluster.Replicas) {
		return nil
	}
	return unknownEndError(stream, fmt.Sprintf("server %s, its last leader, has no contact to %s", cluster.Leader, strings.Join(silent, " and ")))
}

func unknownEndError(stream, why string) error {
	return &sinks.UnavailableError{
		Code: condition.SinkUnreachable, After: connection.UnavailablePause, Reason: fmt.Sprintf("the end of stream %q is unknown: %s", stream, why),
		Remedy: "check that the NATS servers run and reach each other",
	}
}

// maxClaimAttempts bounds the attempts of one Claim.
const maxClaimAttempts = 8

// HeaderExpectedSubject is the header with the subject to which Nats-Expected-Last-Subject-Sequence applies, if that is not
// the subject of the message (ADR-50).
const HeaderExpectedSubject = "Nats-Expected-Last-Subject-Sequence-Subject"

// Owner is a record in a stream that names the process that may write. It is replaced by compare and set: a claim names the
// sequence of the record before it.
type Owner struct {
	// ID and Type make it a record of a type that consumers of the stream do not know, which they ignore.
	ID    string `json:"id,omitempty"`
	Type  string `json:"type,omitempty"` // fence
	Group string `json:"group"`
	Owner string `json:"owner"`
	Claim string `json:"claim"` // random; identifies the claim
	Epoch uint64 `json:"epoch"` // number of the claim, ascending; an older record, from a restored backup, has a lower one

	// Deployment is that of the claim. All its messages from NamedSince on have it in a header, and those before may have none;
	// 0 stands for the sequence of this record.
	Deployment string `json:"deployment,omitempty"`
	NamedSince uint64 `json:"namedSince,omitempty"`

	// Life names the stream as that was created when it got its first record. An earlier version does not have it.
	Life string `json:"life,omitempty"`

	// Process is random, and the same in all claims of one process, which may have missed the answer to one of them.
	Process string `json:"process,omitempty"`

	Sequence uint64 `json:"-"` // of the record; 0: there is none
}

// Ownership describes an [Owner] record: its stream and subject, and the headers with which it is written.
type Ownership struct {
	Client
	Subject     string
	Description string // what is owned, for messages: `the state "x"`
	Life        string // of a stream without a record
	Header      nats.Header
}

// Current reads the record from the stream's leader; the zero value if there is none.
func (o Ownership) Current(ctx context.Context) (Owner, error) {
	m, err := o.Get(ctx, GetRequest{LastOf: o.Subject})
	if err != nil || m.Sequence == 0 {
		return Owner{}, err
	}
	var found Owner
	if err := json.Unmarshal(m.Data, &found); err != nil {
		return Owner{}, fmt.Errorf("message %d of stream %q, the owner of %s: %w", m.Sequence, o.Name, o.Description, err)
	}
	found.Sequence = m.Sequence
	return found, nil
}

// Claim replaces the record by one of this process. mine is the record that this process held before, or the zero value. If
// another process has replaced that since, Claim fails with a [sinks.DeposedError].
func (o Ownership) Claim(ctx context.Context, claim sinks.Claim, mine Owner) (Owner, error) {
	for range maxClaimAttempts {
		before, err := o.Current(ctx)
		if err != nil {
			return Owner{}, err
		}
		if before.Group != "" && before.Group != claim.Group {
			return Owner{}, &sinks.UnavailableError{
				Code: condition.SinkMisconfigured, Remedy: "give each group its own",
				Reason: fmt.Sprintf("%s in stream %q belongs to the exporters of group %q, and this one is of %q",
					o.Description, o.Name, before.Group, claim.Group),
			}
		}
		if mine.Claim != "" && o.IsNewer(before, mine) {
			return Owner{}, o.DeposedError(before, nil)
		}
		made := Owner{Group: claim.Group, Owner: claim.Owner, Claim: nuid.Next(), Process: cmp.Or(mine.Process, nuid.Next()),
			Epoch: max(before.Epoch, mine.Epoch) + 1, Deployment: claim.Deployment}
		made.ID, made.Type, made.Life = "kubecdc.fence/"+made.Claim, "fence", cmp.Or(before.Life, o.Life)
		if before.Deployment == claim.Deployment {
			made.NamedSince = before.FirstNamed()
		}
		data, err := json.Marshal(made)
		if err != nil {
			return Owner{}, fmt.Errorf("encode the owner of %s: %w", o.Description, err)
		}
		header := nats.Header{nats.ExpectedLastSubjSeqHdr: {strconv.FormatUint(before.Sequence, 10)}}
		maps.Copy(header, o.Header)
		made.Sequence, err = o.Publish(ctx, &nats.Msg{Subject: o.Subject, Header: header, Data: data})
		if !ConditionFailed(err) {
			return made, err
		}
	}
	return Owner{}, fmt.Errorf("other exporters claim %s in stream %q at the same time", o.Description, o.Name)
}

// FirstNamed returns the sequence from which all messages of the deployment have its name in a header.
func (o Owner) FirstNamed() uint64 { return cmp.Or(o.NamedSince, o.Sequence) }

// IsNewer reports whether a record belongs to another process that claimed after mine, or at the same time.
func (o Ownership) IsNewer(found, mine Owner) bool {
	return found.Sequence != 0 && !found.SameProcess(mine) && found.Epoch >= mine.Epoch
}

// SameProcess reports whether both claims were made by one process.
func (o Owner) SameProcess(other Owner) bool {
	return o.Claim == other.Claim || o.Process != "" && o.Process == other.Process
}

// DeposedError returns the error of a process that is no longer the owner.
func (o Ownership) DeposedError(by Owner, err error) error {
	return &sinks.DeposedError{Reason: fmt.Sprintf("%q has taken %s over, in stream %q", by.Owner, o.Description, o.Name), Err: err}
}

// Covers reports whether a matches every subject that b matches. Both may have wildcards.
func Covers(a, b string) bool {
	return matchTokens(a, b, func(x, y string) bool { return x == "*" && y != ">" || x == y })
}

// Overlaps reports whether a and b match a subject in common. Both may have wildcards.
func Overlaps(a, b string) bool {
	return matchTokens(a, b, func(x, y string) bool { return x == "*" || y == "*" || x == y }) ||
		matchTokens(b, a, func(x, y string) bool { return x == "*" || y == "*" || x == y })
}

// matchTokens compares a and b token by token; ">" at the end of a matches the rest of b.
func matchTokens(a, b string, same func(x, y string) bool) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i, x := range as {
		if i >= len(bs) {
			return false
		}
		if x == ">" {
			return true
		}
		if !same(x, bs[i]) {
			return false
		}
	}
	return len(as) == len(bs)
}
