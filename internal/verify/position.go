package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

const (
	// maxExactTries is how many watermarks are tried before the newest state is listed instead.
	maxExactTries = 3
	tailPoll      = 500 * time.Millisecond
	awaitAsked    = 10 * time.Second // for a watermark that was asked for, before an older one counts
)

// preparation finds a watermark for each scope and lists the cluster at its position.
type preparation struct{ *verification }

// prepareScopes finds a watermark for each scope and lists the cluster at its position. The error is that of the lanes.
func (v *preparation) prepareScopes(ctx context.Context) error {
	if err := v.searchBack(ctx); err != nil {
		return err
	}
	began := time.Now()
	deadline, asked := began.Add(v.Wait), began.Add(min(v.Wait, awaitAsked))
	for {
		waiting, err := v.prepareOnce(ctx)
		if err != nil || waiting == nil {
			return err
		}
		v.report("waiting for a watermark of %s", waiting.result.Resource)
		if v.AnyAge && v.tail.after != nil && time.Now().After(asked) { // a rule is paused, perhaps
			v.tail.after = nil
			if err := v.searchBack(ctx); err != nil {
				return err
			}
			continue
		}
		if time.Now().After(deadline) {
			v.refuseWaiting()
			return nil
		}
		if err := ratelimit.Sleep(ctx, tailPoll); err != nil {
			return err
		}
		if changed, err := v.tail.searchForward(ctx); err != nil {
			return err
		} else if changed {
			for _, s := range v.scopes { // begin again: the lanes are others now
				s.barrier, s.listed, s.listedAt, s.newer = nil, nil, "", nil
			}
			if err := v.searchBack(ctx); err != nil {
				return err
			}
		}
	}
}

// searchBack searches the lanes for watermarks from their ends, until there is one of each scope.
func (v *preparation) searchBack(ctx context.Context) error {
	for window, more := int64(firstWindow), true; more; window *= windowGrowth {
		var err error
		if more, err = v.tail.searchBack(ctx, window); err != nil {
			return err
		}
		missing := false
		for _, s := range v.scopes {
			missing = missing || !s.isRefused() && v.tail.newestBarrier(s.key, s.wants) == nil
		}
		if !missing {
			return nil
		}
		v.report("looking for watermarks in %d records%s", window, v.ofTopic())
	}
	return nil
}

// wants reports whether the scope can be compared at a watermark: one of the same selection, after those that were tried,
// and after the version of the list, if there is one.
func (s *scope) wants(m *mark) bool {
	if m.selection() != s.Scope.Fingerprint() || s.barrier != nil && m.at <= s.barrier.at {
		return false
	}
	if s.listedAt == "" {
		return true
	}
	order, ordered := resourceversion.Compare(s.listedAt, m.position)
	return ordered && order <= 0
}

// prepareOnce lists each scope that has a watermark by now. It returns a scope that waits for one; nil if none does.
func (v *preparation) prepareOnce(ctx context.Context) (waiting *scope, err error) {
	for _, s := range v.scopes {
		for !s.isRefused() && !s.isListed() {
			b := v.tail.newestBarrier(s.key, s.wants)
			if b == nil {
				waiting = s
				break
			}
			if s.barrier = b; b.Algorithm == "" {
				s.refuse("the stream has not all objects of the resource in all versions, so its watermarks have no digest: a rule with " +
					"filter, onlyIfChanged or ignoreChanges, or routes that send the sink only a part; verify a sink without them")
				break
			}
			if s.listedAt != "" {
				break
			}
			if err := v.listScope(ctx, s); err != nil {
				return nil, err
			}
		}
	}
	return waiting, nil
}

// isListed reports whether the scope has a list and a watermark that belongs to it.
func (s *scope) isListed() bool {
	if s.listed == nil || s.barrier == nil {
		return false
	}
	if s.listedAt == "" {
		return true
	}
	order, ordered := resourceversion.Compare(s.listedAt, s.barrier.position)
	return ordered && order <= 0
}

// listScope lists the cluster at the position of the barrier. If that is not available, the next watermark is tried, and
// after maxExactTries the newest state is listed: then the scope needs a watermark after it.
func (v *preparation) listScope(ctx context.Context, s *scope) error {
	s.tries++
	_, _, err := v.readScope(ctx, s, s.barrier.position)
	if source.IsVersionUnavailable(err) {
		expired := apiserver.Classify(err) == apiserver.Expired
		if expired && s.tries < maxExactTries {
			s.listed = nil
			return ctx.Err() // another watermark is wanted
		}
		return v.listNewest(ctx, s, err)
	}
	return v.refuseUnlisted(ctx, s, err)
}

// listNewest lists the newest state because the position is not available.
func (v *preparation) listNewest(ctx context.Context, s *scope, reason error) error {
	position, newest, err := v.readScope(ctx, s, "")
	if newest != "" {
		position = newest
	}
	if err == nil {
		if _, ordered := resourceversion.Compare(position, position); !ordered {
			err = fmt.Errorf("the API server lists no exact versions (%s), and its versions have no order", apiserver.Reason(reason))
		}
	}
	s.listedAt, s.newer = position, map[consumer.Key]bool{}
	s.result.ListedAt = position
	s.result.Note = fmt.Sprintf("compared with a list at %s, because there is none at the position of a watermark (%s): objects that "+
		"changed since are not compared", position, apiserver.Reason(reason))
	return v.refuseUnlisted(ctx, s, err)
}

// refuseUnlisted refuses a scope that could not be listed.
func (v *preparation) refuseUnlisted(ctx context.Context, s *scope, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	reason := apiserver.Reason(err)
	var denied *apiserver.DeniedError
	if errors.As(err, &denied) {
		reason = denied.Error() + "; grant list on it, `exporter rbac` prints the rights"
	}
	s.refuse("the cluster could not be listed: " + reason)
	return nil
}

// readScope reads the objects of a scope at a version; "" is the newest.
func (v *preparation) readScope(ctx context.Context, s *scope, at string) (position, newest string, err error) {
	return v.List(ctx, s.Scope, at, source.Reading{
		Begin: func(string) error { s.listed = map[consumer.Key]version{}; return nil },
		Visit: func(o *deltas.Object) error {
			listed := version{uid: o.UID, resourceVersion: o.ResourceVersion}
			if v.Shape != nil {
				body, err := v.Shape(s.Scope, o)
				if err != nil {
					return err
				}
				listed.body = diff.Hash(body, pathAPIVersion[1:])
			}
			s.listed[consumer.Key{Namespace: o.Namespace, Name: o.Name}] = listed
			v.report("listed %d objects of %s", len(s.listed), s.result.Resource)
			return nil
		},
	})
}

// refuseWaiting refuses the scopes that have no watermark in time.
func (v *preparation) refuseWaiting() {
	for _, s := range v.scopes {
		if !s.isRefused() && !s.isListed() {
			s.refuse(v.describeWaiting(s))
		}
	}
}

// describeWaiting describes why a scope has no watermark, with the remedy.
func (v *preparation) describeWaiting(s *scope) string {
	newest := v.tail.newestMark(s.key)
	waited := fmt.Sprintf("within %v", v.Wait)
	switch {
	case newest == nil:
		return fmt.Sprintf("no watermark of the resource %s; check that the exporter runs and is ready with `watermarks` for this sink", waited)
	case newest.selection() != s.Scope.Fingerprint():
		return fmt.Sprintf("the newest watermark, at %s, is of another selection of the resource than this configuration, and no other one "+
			"came %s; check that the exporter has taken the edited rules", newest.position, waited)
	case newest.Lanes != len(v.tail.lanes):
		return fmt.Sprintf("the newest watermark, at %s, is in %d lanes, and the destination has %d, and no other one came %s; check the lanes "+
			"of the sink on /readyz", newest.position, newest.Lanes, len(v.tail.lanes), waited)
	case s.tries > 0:
		return fmt.Sprintf("the API server no longer lists at %s, the position of the newest watermark that is in all lanes, and no newer one "+
			"came %s; check that the exporter runs, and on /readyz that the rule is not paused and no lane fails", s.barrier.position, waited)
	}
	return fmt.Sprintf("the newest watermark, at %s, is not in all lanes, and no other one came %s; check the lanes of the sink on /readyz",
		newest.position, waited)
}

// record is a record of the verified cluster.
type record struct {
	consumer.Record
	row       bool // of a format of which readers use the last record of a key alone
	foreign   bool // under the key of the object, and no record of it
	deformed  bool // its value has another form than the format of the sink
	truncated bool // members of the object were omitted
	malformed bool // its members contradict each other; they are what it claims
}

// recordParser parses stored records. It shares texts between records, because a table keeps those of each object.
type recordParser struct {
	cluster string        // of the records that are parsed; "" for any
	format  format.Format // of the sink
	keyed   bool          // readers have the last record of a key
	shared  map[string]string
}

// facts are the members that tables do not need.
type facts struct {
	Omitted []string `json:"omitted"`
}

// parse returns a record; ok is false if it is not about the verified cluster, or is a dead letter.
func (p *recordParser) parse(stored sinks.StoredRecord) (r record, ok bool) {
	s, ours := format.ReadStored(stored.Value, stored.Header)
	of, found := p.foreignUnder(stored)
	if found = found && p.keyed; found && (!ours || !of.isNamedBy(s)) {
		return of, true
	}
	r, ok = p.parseContent(stored, s, ours)
	r.deformed = found && !p.hasForm(s, stored.Value)
	return r, ok
}

// parseContent returns a record with what it says of itself.
func (p *recordParser) parseContent(stored sinks.StoredRecord, s format.Stored, ours bool) (r record, ok bool) {
	if s.DeadLetter || s.Cluster == "" || p.cluster != "" && s.Cluster != p.cluster || s.Resource.Resource == "" {
		return r, false
	}
	switch {
	case !ours:
		r.malformed = s.ID != "" && s.Type != "" && s.Key != ""
		r.Record = recordOfRow(s)
		return r, r.malformed
	case s.Native == nil && !p.format.HasRows() && bytes.HasPrefix(stored.Value, nativeStart): // the headers contradict the value
		r.malformed, r.Record = true, recordOfRow(s)
		return r, true
	case s.Native == nil:
		r.row, r.Record = true, recordOfRow(s)
		r.truncated = strings.HasPrefix(string(s.After[:min(len(s.After), len(rowMark))]), rowMark)
	default:
		native, err := consumer.Parse(s.Native)
		if err != nil {
			r.malformed, r.Record = true, recordOfRow(s)
			return r, s.Key != ""
		}
		r.Record, r.row = native, len(stored.Value) == 0
		r.truncated = isTruncated(s.Native)
	}
	p.shareTexts(&r.Record)
	return r, true
}

// foreignUnder returns what a record is that stands under the key of an object of the cluster, and is none of it: without a
// value a delete. found is false if the key is of no object.
func (p *recordParser) foreignUnder(stored sinks.StoredRecord) (r record, found bool) {
	cluster, of, namespace, name := format.ParseKey(stored.Key)
	if name == "" || p.cluster != "" && cluster != p.cluster {
		return r, false
	}
	r.foreign, r.row = len(stored.Value) > 0, true
	r.Coalesced, r.Cluster, r.Group, r.Resource, r.Namespace, r.Name = true, cluster, of.Group, of.Resource, namespace, name
	if r.Type = string(event.Updated); !r.foreign {
		r.Type = string(event.Deleted)
	}
	return r, true
}

// isNamedBy reports whether a stored record is about the object.
func (r *record) isNamedBy(s format.Stored) bool {
	of := event.Resource{Group: r.Group, Resource: r.Resource}
	return s.Key == strings.TrimPrefix(r.Namespace+"/"+r.Name, "/") && s.Cluster == r.Cluster && s.Resource == of
}

// hasForm reports whether a value is what readers of the sink's format expect.
func (p *recordParser) hasForm(s format.Stored, value []byte) bool {
	isRow := len(s.After) == len(value)
	switch {
	case !p.format.HasRows() || len(value) == 0:
		return true
	case s.Native != nil || isRow != (p.format == format.Upsert) || s.Type == event.Deleted && len(s.After) > 0:
		return false
	}
	return p.format.IsRegistered() && value[0] == format.RegisteredStart || value[0] == '{' && value[len(value)-1] == '}'
}

// nativeStart is how a native object begins. Objects of Kubernetes do not.
var nativeStart = []byte(`{"id":`)

// rowMark is how a truncated row begins.
const rowMark = `{"` + format.OmittedMember + `"`

// recordOfRow returns the record of a row. The last one of a key is its state, whatever version it has.
func recordOfRow(s format.Stored) consumer.Record {
	r := consumer.Record{
		ID: s.ID, Type: string(s.Type), Cluster: s.Cluster, Group: s.Resource.Group, Resource: s.Resource.Resource,
		Name: s.Key, UID: s.UID, ResourceVersion: s.ResourceVersion, Coalesced: true, After: s.After,
	}
	if namespace, name, namespaced := strings.Cut(s.Key, "/"); namespaced {
		r.Namespace, r.Name = namespace, name
	}
	return r
}

// isTruncated reports whether members of the object were omitted.
func isTruncated(native []byte) bool {
	var f facts
	if !strings.Contains(string(native[:min(len(native), maxFactBytes)]), `"omitted":[`) || json.Unmarshal(native, &f) != nil {
		return false
	}
	return len(f.Omitted) > 0
}

// maxFactBytes bounds the facts of a record, which precede its bodies.
const maxFactBytes = 16 << 10

// shareTexts lets the texts of a record share memory with each other and with those of other records.
func (p *recordParser) shareTexts(r *consumer.Record) {
	if rest, found := strings.CutPrefix(r.ID, r.Cluster+"/"+r.UID+"/"); found && r.UID != "" {
		at := len(r.ID) - len(rest)
		r.UID = r.ID[at-len(r.UID)-1 : at-1]
		if strings.HasPrefix(rest, r.ResourceVersion+"/") {
			r.ResourceVersion = rest[:len(r.ResourceVersion)]
		}
	}
	for _, text := range []*string{&r.Cluster, &r.Group, &r.Resource, &r.Version, &r.Namespace, &r.Type, &r.ListVersion} {
		*text = p.share(*text)
	}
	if r.Snapshot != nil {
		r.Snapshot.ID = p.share(r.Snapshot.ID)
	}
}

// maxShared bounds the texts that are shared.
const maxShared = 1 << 16

func (p *recordParser) share(text string) string {
	known, found := p.shared[text]
	switch {
	case found:
		return known
	case p.shared == nil:
		p.shared = map[string]string{}
	case len(p.shared) >= maxShared:
		clear(p.shared)
	}
	p.shared[text] = text
	return text
}

// toApply returns the record for a table: the last row of a key takes the place of those before, also of the same ID.
func (r *record) toApply(stored sinks.StoredRecord) consumer.Record {
	of := r.Record
	if r.row {
		of.ID = fmt.Sprint(stored.Lane, "@", stored.Position)
	}
	return of
}

// isObject reports whether the record is about the state of an object.
func (r *record) isObject() bool { return r.Name != "" && !event.Type(r.Type).IsBeside() }

// isListed reports whether a list showed the record, so that its version may be lower than what a watch showed before, or
// whether history was lost.
func (r *record) isListed() bool {
	return r.ListVersion != "" || r.Coalesced || r.Left || r.Snapshot != nil || r.Type == string(event.Sync)
}

// readVersion returns the newest version of the cluster that the record depends on.
func (r *record) readVersion() string {
	if isBefore(r.ResourceVersion, r.ListVersion) {
		return r.ListVersion
	}
	return r.ResourceVersion
}

// mark is one copy of a watermark in a lane.
type mark struct {
	consumer.Watermark
	position string // resourceVersion
	at       int64  // its position in the lane
	time     time.Time
}

// selection returns the fingerprint of what is selected in the epoch of the watermark.
func (m *mark) selection() string {
	_, fingerprint, _ := strings.Cut(m.Epoch, event.EpochSeparator)
	return fingerprint
}
