package nats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// replica is a process that writes or follows a state: a store, and the entries that it knows.
type replica struct {
	t       testing.TB
	store   sinks.StateStore
	entries map[string]string
	sets    int // since the claim, or an error
}

// roundSets is the number of sets after which everything is stored again.
const roundSets = 20

// openReplica opens a state as another process would.
func openReplica(t testing.TB, cfg Config) *replica {
	r := &replica{t: t, entries: map[string]string{}}
	store, err := openSink(t, cfg, discardLog).OpenState("STATE")
	if err != nil {
		t.Fatal(err)
	}
	r.store = store
	return r
}

// readAll reads to the end and reports whether it had to start again.
func (r *replica) readAll() (reset bool) {
	r.t.Helper()
	reset, err := r.tryReadAll()
	if err != nil {
		r.t.Fatal(err)
	}
	return reset
}

// tryReadAll is readAll with an error, after which it may be called again.
func (r *replica) tryReadAll() (reset bool, err error) {
	for {
		again, err := r.store.Read(r.t.Context(), func(e sinks.StateEntry) error {
			if delete(r.entries, string(e.Key)); e.Value != nil {
				r.entries[string(e.Key)] = string(e.Value)
			}
			return nil
		})
		if again {
			reset = true
			clear(r.entries)
		}
		if err != nil || !again {
			return reset, err
		}
	}
}

func (r *replica) mustClaim(owner string) {
	r.t.Helper()
	if err := r.tryClaim(owner); err != nil {
		r.t.Fatal(err)
	}
	r.readAll()
}

func (r *replica) tryClaim(owner string) error {
	return r.store.Claim(r.t.Context(), sinks.Claim{Group: "group", Owner: owner})
}

// setEntries writes entries; "" removes a key.
func (r *replica) setEntries(pairs ...string) error {
	var entries []sinks.StateEntry
	for i := 0; i < len(pairs); i += 2 {
		e := sinks.StateEntry{Key: []byte(pairs[i])}
		if delete(r.entries, pairs[i]); pairs[i+1] != "" {
			e.Value, r.entries[pairs[i]] = []byte(pairs[i+1]), pairs[i+1]
		}
		entries = append(entries, e)
	}
	begins := r.sets > 0 && r.sets%roundSets == 0
	if r.sets++; r.sets%roundSets == 0 {
		for key, value := range r.entries {
			entries = append(entries, sinks.StateEntry{Key: []byte(key), Value: []byte(value)})
		}
	}
	for len(entries) > 0 {
		n := 0
		for size := 0; n < len(entries) && (n == 0 || size+entries[n].Size() <= r.store.AtomicBytes()); n++ {
			size += entries[n].Size()
		}
		if err := r.store.Append(r.t.Context(), entries[:n], begins); err != nil {
			r.sets = 0
			return err
		}
		entries, begins = entries[n:], false
	}
	return nil
}

func (r *replica) mustSet(pairs ...string) {
	r.t.Helper()
	if err := r.setEntries(pairs...); err != nil {
		r.t.Fatal(err)
	}
}

// writeAll writes all known entries.
func (r *replica) writeAll() {
	r.t.Helper()
	var pairs []string
	for key, value := range r.entries {
		pairs = append(pairs, key, value)
	}
	r.mustSet(pairs...)
}

// mustEqual fails the test unless two replicas know the same entries.
func (r *replica) mustEqual(other *replica) {
	r.t.Helper()
	if !maps.Equal(r.entries, other.entries) {
		r.t.Fatalf("has %d entries, want %d: %.300v\nwant %.300v", len(r.entries), len(other.entries), r.entries, other.entries)
	}
}

func mustBeDeposedBy(t testing.TB, err error, owner string) {
	t.Helper()
	var deposed *sinks.DeposedError
	if !errors.As(err, &deposed) || !strings.Contains(deposed.Reason, owner) {
		t.Fatalf("got %v, want a DeposedError that names %s", err, owner)
	}
}

func mustBeStateLost(t testing.TB, err error) {
	t.Helper()
	var lost *sinks.StateLostError
	if !errors.As(err, &lost) {
		t.Fatalf("got %v, want a StateLostError", err)
	}
}

func TestAStateOutlivesItsOwnerAndFencesIt(t *testing.T) {
	cfg := testConfig(startServer(t, "").URL())
	follower, first := openReplica(t, cfg), openReplica(t, cfg)
	follower.readAll() // the stream does not exist yet
	first.mustClaim("one")
	first.mustSet("a", "1", "b", "2")
	first.mustSet("a", "", "c", "3")
	follower.readAll()
	follower.mustEqual(first)
	second := openReplica(t, cfg)
	second.mustClaim("two")
	second.mustEqual(follower)
	for range 2 {
		mustBeDeposedBy(t, first.store.Append(t.Context(), []sinks.StateEntry{{Key: []byte("z"), Value: []byte("zombie")}}, false), "two")
	}
	second.mustSet("d", "4")
	follower.readAll()
	follower.mustEqual(second)
	first.mustClaim("one again")
	first.mustSet("e", "5")
	mustBeDeposedBy(t, second.setEntries("f", "6"), "one again")
	if follower.readAll() {
		t.Error("a follower had to start again")
	}
	follower.mustEqual(first)
}

// The state changes thirty times over. Its stream stays a few times as large as the state. A follower that reads often,
// one that reads rarely and a new one know the same entries.
func TestOldSegmentsAreRemovedAndNothingReturns(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	cfg := testConfig(server.URL())
	owner, near, far := openReplica(t, cfg), openReplica(t, cfg), openReplica(t, cfg)
	owner.mustClaim("one")
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 300 {
		var pairs []string
		for range 100 {
			value := ""
			if random.IntN(3) > 0 {
				value = fmt.Sprintf("%d %x", i, random.Uint64())
			}
			pairs = append(pairs, fmt.Sprintf("core/pods/shop/web-%d", random.IntN(1000)), value)
		}
		owner.mustSet(uniquePairs(pairs)...)
		if near.readAll(); i%10 == 0 {
			near.mustEqual(owner)
		}
		if i == 10 || i == 280 {
			far.readAll()
		}
		if i == 150 {
			next := openReplica(t, cfg)
			next.mustClaim("two")
			next.mustEqual(owner)
			owner = next
		}
	}
	fresh := openReplica(t, cfg)
	for _, r := range []*replica{near, far, fresh} {
		r.readAll()
		r.mustEqual(owner)
	}
	info, err := retryUntilAnswered(t.Context(), func(ctx context.Context) (jetstream.Stream, error) {
		return connectClient(t, server.URL()).Stream(ctx, "STATE")
	})
	if err != nil {
		t.Fatal(err)
	}
	if size := info.CachedInfo().State.Bytes; size > 1<<20 {
		t.Errorf("the stream holds %d bytes", size)
	}
}

// uniquePairs removes repeated keys.
func uniquePairs(pairs []string) (rest []string) {
	seen := map[string]bool{}
	for i := 0; i < len(pairs); i += 2 {
		if !seen[pairs[i]] {
			rest = append(rest, pairs[i], pairs[i+1])
		}
		seen[pairs[i]] = true
	}
	return rest
}

// A state of the size that is promised to be whole is one message, so no reader sees a part of it.
func TestAWriteThatIsPromisedWholeIsOneMessage(t *testing.T) {
	server := startServer(t, "max_payload: 64KB\n")
	store, err := openSink(t, testConfig(server.URL()), discardLog).OpenState("STATE")
	if err == nil {
		err = store.Claim(t.Context(), sinks.Claim{Group: "group", Owner: "one"})
	}
	if err != nil {
		t.Fatal(err)
	}
	var entries []sinks.StateEntry
	for n, size := 0, 0; ; n++ {
		e := sinks.StateEntry{Key: fmt.Append(nil, n), Value: fmt.Append(nil, rand.Uint64())}
		if size += e.Size(); size > store.AtomicBytes() {
			break
		}
		entries = append(entries, e)
	}
	if err := store.Append(t.Context(), entries, false); err != nil {
		t.Fatal(err)
	}
	stream := findStream(t, connectClient(t, server.URL()), "STATE")
	if messages := stream.CachedInfo().State.Msgs; messages != 2 || len(entries) < 1000 {
		t.Errorf("%d entries are in a stream of %d messages, one of them for the owner; want 2", len(entries), messages)
	}
}

func TestALostStateIsRewritten(t *testing.T) {
	for _, test := range []struct {
		name string
		lose func(t *testing.T, js jetstream.JetStream)
	}{
		{"purged", func(t *testing.T, js jetstream.JetStream) { purgeStream(t, js, "STATE") }},
		{"deleted", func(t *testing.T, js jetstream.JetStream) { deleteStream(t, js, "STATE") }},
		{"recreated", func(t *testing.T, js jetstream.JetStream) {
			config := findStream(t, js, "STATE").CachedInfo().Config
			deleteStream(t, js, "STATE")
			createStream(t, js, config)
		}},
		{"its newest segments purged", func(t *testing.T, js jetstream.JetStream) { purgeSegments(t, js) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := startServer(t, "")
			cfg := testConfig(server.URL())
			owner, follower := openReplica(t, cfg), openReplica(t, cfg)
			owner.mustClaim("one")
			owner.mustSet("a", "1", "b", "2")
			follower.readAll()
			test.lose(t, connectClient(t, server.URL()))
			owner.setAndRewrite("c", "3")
			if !follower.readAll() {
				t.Error("the follower did not start again")
			}
			follower.mustEqual(owner)
			owner.mustSet("a", "")
			follower.readAll()
			follower.mustEqual(owner)
		})
	}
}

// purgeSegments purges all segments of a state and returns its stream.
func purgeSegments(t *testing.T, js jetstream.JetStream) jetstream.Stream {
	t.Helper()
	stream, err := js.Stream(t.Context(), "STATE")
	if err == nil {
		err = stream.Purge(t.Context(), jetstream.WithPurgeSubject("STATE.log.*"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// The stream has no space for the second of the segments that empty it, and has space again later.
func TestALossThatCannotBeRepairedAtOnceIsReportedAgain(t *testing.T) {
	server := startServer(t, "")
	cfg := testConfig(server.URL())
	owner, follower := openReplica(t, cfg), openReplica(t, cfg)
	owner.mustClaim("one")
	owner.mustSet("a", "1", "b", "2")
	follower.readAll()
	js := connectClient(t, server.URL())
	stream := purgeSegments(t, js)
	limit := func(messages int64) {
		t.Helper()
		config := stream.CachedInfo().Config
		config.MaxMsgs = messages
		updateStream(t, js, config)
	}
	limit(2)
	var away *sinks.UnavailableError
	if err := owner.setEntries("c", "3"); !errors.As(err, &away) || !strings.Contains(away.Reason, "cannot store more") {
		t.Fatalf("got %v, want an UnavailableError", err)
	}
	limit(-1)
	owner.setAndRewrite("d", "4")
	if !follower.readAll() {
		t.Error("the follower did not start again")
	}
	follower.mustEqual(owner)
}

// setAndRewrite changes an entry, expects the loss of the state, and writes all entries.
func (r *replica) setAndRewrite(key, value string) {
	r.t.Helper()
	mustBeStateLost(r.t, r.waitAnswered(func() error { return r.setEntries(key, value) }))
	r.writeAll()
}

// waitAnswered returns the result of do once NATS has answered: a client may notice that a server was away only when it
// sends something.
func (r *replica) waitAnswered(do func() error) (answer error) {
	r.t.Helper()
	r.retryUntilOK(func() error {
		answer = do()
		if away := (*sinks.UnavailableError)(nil); errors.As(answer, &away) {
			return away
		}
		return nil
	})
	return answer
}

// readWhenAvailable is readAll after servers were away.
func (r *replica) readWhenAvailable() {
	r.t.Helper()
	if err := r.waitAnswered(func() error { _, err := r.tryReadAll(); return err }); err != nil {
		r.t.Fatal(err)
	}
}

// A backup replaces the files of the stream: it has the previous owner, and entries that were removed since.
func TestAStateRestoredFromABackupIsRewritten(t *testing.T) {
	dir := t.TempDir()
	server := startServerIn(t, dir)
	cfg := testConfig(server.URL())
	first, follower := openReplica(t, cfg), openReplica(t, cfg)
	first.mustClaim("one")
	first.mustSet("a", "1", "b", "2")
	whileStopped(t, server, func() { copyDir(t, dir+"/store", dir+"/backup") })
	owner := openReplica(t, cfg)
	owner.mustClaim("two")
	owner.mustSet("a", "", "c", "3")
	owner.mustSet("d", "4")
	follower.readAll()
	follower.mustEqual(owner)
	whileStopped(t, server, func() { replaceDir(t, dir+"/store", dir+"/backup") })
	owner.setAndRewrite("e", "5")
	follower.readWhenAvailable()
	follower.mustEqual(owner)
	mustBeDeposedBy(t, first.waitAnswered(func() error { return first.setEntries("f", "6") }), "two")
}

func TestAStateOfAnotherGroupIsLeftAlone(t *testing.T) {
	cfg := testConfig(startServer(t, "").URL())
	first, second := openReplica(t, cfg), openReplica(t, cfg)
	first.mustClaim("one")
	err := second.store.Claim(t.Context(), sinks.Claim{Group: "another", Owner: "two"})
	var away *sinks.UnavailableError
	if !errors.As(err, &away) || !strings.Contains(away.Reason, `group "group"`) {
		t.Errorf("claimed: %v", err)
	}
	first.mustSet("a", "1")
}

func TestAStreamUnfitForAStateIsAnErrorWithARemedy(t *testing.T) {
	server := startServer(t, "")
	js, cfg := connectClient(t, server.URL()), testConfig(server.URL())
	fits := jetstream.StreamConfig{Name: "STATE", Subjects: []string{"STATE.>"}, AllowRollup: true, AllowDirect: true, Discard: jetstream.DiscardNew}
	for words, edit := range map[string]func(*jetstream.StreamConfig){
		"--allow-rollup": func(c *jetstream.StreamConfig) { c.AllowRollup = false },
		"STATE.>":        func(c *jetstream.StreamConfig) { c.Subjects = []string{"else.>"} },
		"max_age":        func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"discard new":    func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardOld },
	} {
		config := fits
		edit(&config)
		createStream(t, js, config)
		err := openReplica(t, cfg).store.Claim(t.Context(), sinks.Claim{Group: "group", Owner: "one"})
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("want %q in: %v", words, err)
		}
		deleteStream(t, js, "STATE")
	}
	fits.AllowDirect = false // is slower, and fits
	createStream(t, js, fits)
	owner := openReplica(t, cfg)
	owner.mustClaim("one")
	owner.mustSet("a", "1")
	fresh := openReplica(t, cfg)
	fresh.readAll()
	fresh.mustEqual(owner)
}

// TestAStreamThatIsEditedToDropTheStateIsReportedByItsOwner while it writes, and not only by the next failover.
func TestAStreamThatIsEditedToDropTheStateIsReportedByItsOwner(t *testing.T) {
	server := startServer(t, "")
	js, cfg := connectClient(t, server.URL()), testConfig(server.URL())
	one, two := openReplica(t, cfg), openReplica(t, cfg)
	one.mustClaim("one")
	before := streamSettings(t, js, "STATE")
	edited := before
	edited.MaxAge = time.Hour
	updateStream(t, js, edited)
	one.mustSet("a", "1")
	if got := one.store.Condition(); got.Code != condition.StateMayLose || !strings.Contains(got.Cause, "max_age") {
		t.Errorf("its owner reports %+v", got)
	}
	updateStream(t, js, before)
	two.mustClaim("two")
	two.mustSet("b", "1")
	mustBeDeposedBy(t, one.setEntries("a", "2"), "two")
	for _, r := range []*replica{one, two} {
		if got := r.store.Condition(); !got.OK() {
			t.Errorf("a stream that keeps everything is reported: %+v", got)
		}
	}
}

func TestMissingRightsOfAStateAreNamed(t *testing.T) {
	server := startServer(t, `authorization { users: [
  { user: all, password: secret },
  { user: reader, password: secret, permissions: { subscribe: ">", publish: ["$JS.API.STREAM.INFO.STATE", "$JS.API.STREAM.MSG.GET.STATE"] } },
  { user: writer, password: secret, permissions: { subscribe: "_INBOX.>", publish: ["$JS.API.STREAM.INFO.STATE", "$JS.API.STREAM.MSG.GET.STATE", "$JS.API.DIRECT.GET.STATE", "STATE.>"] } }
] }
`)
	cfg := testConfig(server.URL())
	lacks := func(user, word string) {
		t.Helper()
		r := openReplica(t, asUser(cfg, user))
		err := r.store.Claim(t.Context(), sinks.Claim{Group: "group", Owner: user})
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: want %q in: %v", user, word, err)
		}
	}
	lacks("reader", "$JS.API.STREAM.CREATE.STATE")
	owner := openReplica(t, asUser(cfg, "all"))
	owner.mustClaim("all")
	owner.mustSet("a", "1")
	lacks("reader", "STATE.owner")
	reader := openReplica(t, asUser(cfg, "reader"))
	if _, err := reader.store.Read(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "$JS.API.DIRECT.GET.STATE") {
		t.Errorf("read: %v", err)
	}
	writer := openReplica(t, asUser(cfg, "writer"))
	writer.mustClaim("writer")
	writer.mustSet("b", "2")
	mustBeDeposedBy(t, owner.setEntries("c", "3"), "writer")
}

// Owners take the state over from each other while connections are cut: an old owner is deposed, and the state holds none of
// its later writes.
func TestAStateOverABadNetworkHoldsOnlyItsOwnersWrites(t *testing.T) {
	server := startServer(t, "")
	p := startProxy(t, strings.TrimPrefix(server.URL(), "nats://"))
	cfg := shortTimeoutConfig("nats://" + p.listenAddress())
	var writes atomic.Int64
	stop := p.cutEvery(50*time.Millisecond, writes.Load)
	defer stop()
	var before *replica
	for life := range 6 {
		r := openReplica(t, cfg)
		r.retryUntilOK(func() error { return r.tryClaim(fmt.Sprint("life ", life)) })
		if before != nil {
			before.retryUntilOK(func() error {
				err := before.setEntries("zombie", fmt.Sprint(life))
				if deposed := (*sinks.DeposedError)(nil); errors.As(err, &deposed) {
					return nil
				}
				return errors.Join(err, errors.New("not deposed yet"))
			})
			delete(before.entries, "zombie")
		}
		r.retryUntilOK(func() error {
			_, err := r.tryReadAll()
			return err
		})
		if before != nil {
			r.mustEqual(before)
		}
		for i := range 150 {
			r.retryUntilOK(func() error {
				return r.setEntries(fmt.Sprint(i%70), fmt.Sprint(life, " ", i), fmt.Sprint(i%30, "-"), strings.Repeat("y", i%3*300))
			})
			writes.Add(1)
		}
		before = r
	}
	fresh := openReplica(t, testConfig(server.URL()))
	fresh.readWhenAvailable() // a server may still be starting
	fresh.mustEqual(before)
}

// retryUntilOK repeats do until it succeeds.
func (r *replica) retryUntilOK(do func() error) {
	r.t.Helper()
	for begun := time.Now(); ; {
		err := do()
		if err == nil {
			return
		}
		if time.Since(begun) > testTimeout {
			r.t.Fatal(err)
		}
	}
}
