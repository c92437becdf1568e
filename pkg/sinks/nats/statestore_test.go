package nats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// replica is a process that keeps or follows a state: a store, and what it knows of it.
type replica struct {
	t     testing.TB
	store sinks.StateStore
	known map[string]string
}

// joins opens a state in a process of its own.
func joins(t testing.TB, cfg Config) *replica {
	r := &replica{t: t, known: map[string]string{}}
	store, err := opened(t, cfg, quiet).OpenState("STATE", r.contents)
	if err != nil {
		t.Fatal(err)
	}
	r.store = store
	return r
}

func (r *replica) contents(part, parts int) (entries []sinks.StateEntry) {
	for key, value := range r.known {
		sum := 0
		for _, b := range []byte(key) {
			sum = sum*31 + int(b)
		}
		if sum&0xffff%parts == part {
			entries = append(entries, sinks.StateEntry{Key: []byte(key), Value: []byte(value)})
		}
	}
	return entries
}

// read reads to the end and says whether it had to begin anew.
func (r *replica) read() (reset bool) {
	r.t.Helper()
	reset, err := r.tryRead()
	if err != nil {
		r.t.Fatal(err)
	}
	return reset
}

// tryRead may be called again after an error.
func (r *replica) tryRead() (reset bool, err error) {
	for {
		again, err := r.store.Read(r.t.Context(), func(e sinks.StateEntry) error {
			if delete(r.known, string(e.Key)); e.Value != nil {
				r.known[string(e.Key)] = string(e.Value)
			}
			return nil
		})
		if again {
			reset = true
			clear(r.known)
		}
		if err != nil || !again {
			return reset, err
		}
	}
}

func (r *replica) claim(owner string) {
	r.t.Helper()
	if err := r.tryClaim(owner); err != nil {
		r.t.Fatal(err)
	}
	r.read()
}

func (r *replica) tryClaim(owner string) error {
	return r.store.Claim(r.t.Context(), sinks.Claim{Group: "group", Owner: owner})
}

// set changes entries, of which those without a value are removed.
func (r *replica) set(pairs ...string) error {
	var entries []sinks.StateEntry
	for i := 0; i < len(pairs); i += 2 {
		e := sinks.StateEntry{Key: []byte(pairs[i])}
		if delete(r.known, pairs[i]); pairs[i+1] != "" {
			e.Value, r.known[pairs[i]] = []byte(pairs[i+1]), pairs[i+1]
		}
		entries = append(entries, e)
	}
	return r.store.Write(r.t.Context(), entries)
}

func (r *replica) mustSet(pairs ...string) {
	r.t.Helper()
	if err := r.set(pairs...); err != nil {
		r.t.Fatal(err)
	}
}

// all writes everything that is known.
func (r *replica) all() {
	r.t.Helper()
	var pairs []string
	for key, value := range r.known {
		pairs = append(pairs, key, value)
	}
	r.mustSet(pairs...)
}

// knows fails the test unless a replica knows what another one does.
func (r *replica) knows(other *replica) {
	r.t.Helper()
	if !maps.Equal(r.known, other.known) {
		r.t.Fatalf("knows %d entries, want %d: %.300v\nwant %.300v", len(r.known), len(other.known), r.known, other.known)
	}
}

func deposedBy(t testing.TB, err error, owner string) {
	t.Helper()
	var deposed *sinks.DeposedError
	if !errors.As(err, &deposed) || !strings.Contains(deposed.Reason, owner) {
		t.Fatalf("got %v, want a DeposedError that names %s", err, owner)
	}
}

func lostState(t testing.TB, err error) {
	t.Helper()
	var lost *sinks.StateLostError
	if !errors.As(err, &lost) {
		t.Fatalf("got %v, want a StateLostError", err)
	}
}

func TestAStateOutlivesItsOwnerAndTurnsItAway(t *testing.T) {
	cfg := configFor(serve(t, "").URL())
	follower, first := joins(t, cfg), joins(t, cfg)
	follower.read() // there is no stream yet
	first.claim("one")
	first.mustSet("a", "1", "b", "2")
	first.mustSet("a", "", "c", "3")
	follower.read()
	follower.knows(first)
	second := joins(t, cfg)
	second.claim("two")
	second.knows(follower)
	for range 2 {
		deposedBy(t, first.store.Write(t.Context(), []sinks.StateEntry{{Key: []byte("z"), Value: []byte("zombie")}}), "two")
	}
	second.mustSet("d", "4")
	follower.read()
	follower.knows(second)
	first.claim("one again")
	first.mustSet("e", "5")
	deposedBy(t, second.set("f", "6"), "one again")
	if follower.read() {
		t.Error("a follower began anew")
	}
	follower.knows(first)
}

// The state is changed a hundred times over. Its stream stays a few times as large as the state, and one that follows, from
// near or from afar, knows the same as one that comes new.
func TestOldSegmentsOfAStateGoAndNothingComesBack(t *testing.T) {
	server := serve(t, "")
	cfg := configFor(server.URL())
	owner, near, far := joins(t, cfg), joins(t, cfg), joins(t, cfg)
	owner.claim("one")
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 600 {
		var pairs []string
		for range 100 {
			value := ""
			if random.IntN(3) > 0 {
				value = fmt.Sprintf("%d %x", i, random.Uint64())
			}
			pairs = append(pairs, fmt.Sprintf("core/pods/shop/web-%d", random.IntN(1000)), value)
		}
		owner.mustSet(unique(pairs)...)
		if near.read(); i%10 == 0 {
			near.knows(owner)
		}
		if i == 10 || i == 550 {
			far.read()
		}
		if i == 300 {
			next := joins(t, cfg)
			next.claim("two")
			next.knows(owner)
			owner = next
		}
	}
	fresh := joins(t, cfg)
	for _, r := range []*replica{near, far, fresh} {
		r.read()
		r.knows(owner)
	}
	info, err := insist(t.Context(), func(ctx context.Context) (jetstream.Stream, error) {
		return client(t, server.URL()).Stream(ctx, "STATE")
	})
	if err != nil {
		t.Fatal(err)
	}
	if size := info.CachedInfo().State.Bytes; size > 1<<20 {
		t.Errorf("the stream holds %d bytes", size)
	}
}

// unique leaves out keys that come again.
func unique(pairs []string) (rest []string) {
	seen := map[string]bool{}
	for i := 0; i < len(pairs); i += 2 {
		if !seen[pairs[i]] {
			rest = append(rest, pairs[i], pairs[i+1])
		}
		seen[pairs[i]] = true
	}
	return rest
}

func TestWhatIsLargerThanAMessageIsWrittenInSeveral(t *testing.T) {
	cfg := configFor(serve(t, "max_payload: 64KB\n").URL())
	owner, follower := joins(t, cfg), joins(t, cfg)
	owner.claim("one")
	random := rand.New(rand.NewPCG(2, 2))
	var pairs []string
	for i := range 300 {
		pairs = append(pairs, fmt.Sprint(i), fmt.Sprint(random.Uint64())+strings.Repeat("x", random.IntN(1000)))
	}
	for range 5 {
		owner.mustSet(pairs...)
	}
	follower.read()
	follower.knows(owner)
}

func TestAStateThatIsLostIsWrittenAgain(t *testing.T) {
	for _, test := range []struct {
		name string
		lose func(t *testing.T, js jetstream.JetStream)
	}{
		{"purged", func(t *testing.T, js jetstream.JetStream) {
			stream, err := js.Stream(t.Context(), "STATE")
			if err == nil {
				err = stream.Purge(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
		{"deleted", func(t *testing.T, js jetstream.JetStream) {
			if err := js.DeleteStream(t.Context(), "STATE"); err != nil {
				t.Fatal(err)
			}
		}},
		{"made anew", func(t *testing.T, js jetstream.JetStream) {
			stream, err := js.Stream(t.Context(), "STATE")
			if err == nil {
				err = js.DeleteStream(t.Context(), "STATE")
			}
			if err != nil {
				t.Fatal(err)
			}
			createStream(t, js, stream.CachedInfo().Config)
		}},
		{"its newest segments purged", func(t *testing.T, js jetstream.JetStream) { purgeSegments(t, js) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := serve(t, "")
			cfg := configFor(server.URL())
			owner, follower := joins(t, cfg), joins(t, cfg)
			owner.claim("one")
			owner.mustSet("a", "1", "b", "2")
			follower.read()
			test.lose(t, client(t, server.URL()))
			owner.rewrites("c", "3")
			if !follower.read() {
				t.Error("the follower did not begin anew")
			}
			follower.knows(owner)
			owner.mustSet("a", "")
			follower.read()
			follower.knows(owner)
		})
	}
}

// purgeSegments loses all segments of a state, and returns its stream.
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

// The stream has no room for the second of the segments that empty it, and has it again later.
func TestAStateWhoseLossIsNotDealtWithAtOnceIsStillLost(t *testing.T) {
	server := serve(t, "")
	cfg := configFor(server.URL())
	owner, follower := joins(t, cfg), joins(t, cfg)
	owner.claim("one")
	owner.mustSet("a", "1", "b", "2")
	follower.read()
	js := client(t, server.URL())
	stream := purgeSegments(t, js)
	limit := func(messages int64) {
		t.Helper()
		config := stream.CachedInfo().Config
		config.MaxMsgs = messages
		if _, err := js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	limit(2)
	var away *sinks.UnavailableError
	if err := owner.set("c", "3"); !errors.As(err, &away) || !strings.Contains(away.Reason, "cannot store more") {
		t.Fatalf("got %v, want an UnavailableError", err)
	}
	limit(-1)
	owner.rewrites("d", "4")
	if !follower.read() {
		t.Error("the follower did not begin anew")
	}
	follower.knows(owner)
}

// rewrites changes an entry, is told that the state is lost, and writes all of it.
func (r *replica) rewrites(key, value string) {
	r.t.Helper()
	lostState(r.t, r.answer(func() error { return r.set(key, value) }))
	r.all()
}

// answer is what do says when NATS has answered: of a server that was away, a client may learn only when it has sent
// something.
func (r *replica) answer(do func() error) (answer error) {
	r.t.Helper()
	r.until(func() error {
		answer = do()
		if away := (*sinks.UnavailableError)(nil); errors.As(answer, &away) {
			return away
		}
		return nil
	})
	return answer
}

// readOnceThere is read after servers were away.
func (r *replica) readOnceThere() {
	r.t.Helper()
	if err := r.answer(func() error { _, err := r.tryRead(); return err }); err != nil {
		r.t.Fatal(err)
	}
}

// A backup takes the place of the stream's files: its owner is one before ours, and what was removed since is there again.
func TestAStateOutOfABackupIsEmptiedAndWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	server := serveIn(t, dir, "")
	cfg := configFor(server.URL())
	first, follower := joins(t, cfg), joins(t, cfg)
	first.claim("one")
	first.mustSet("a", "1", "b", "2")
	offline(t, server, func() { duplicate(t, dir+"/store", dir+"/backup") })
	owner := joins(t, cfg)
	owner.claim("two")
	owner.mustSet("a", "", "c", "3")
	owner.mustSet("d", "4")
	follower.read()
	follower.knows(owner)
	offline(t, server, func() { exchange(t, dir+"/store", dir+"/backup") })
	owner.rewrites("e", "5")
	follower.readOnceThere()
	follower.knows(owner)
	deposedBy(t, first.answer(func() error { return first.set("f", "6") }), "two")
}

func TestAStateOfAnotherGroupIsLeftAlone(t *testing.T) {
	cfg := configFor(serve(t, "").URL())
	first, second := joins(t, cfg), joins(t, cfg)
	first.claim("one")
	err := second.store.Claim(t.Context(), sinks.Claim{Group: "another", Owner: "two"})
	var away *sinks.UnavailableError
	if !errors.As(err, &away) || !strings.Contains(away.Reason, `group "group"`) {
		t.Errorf("claimed: %v", err)
	}
	first.mustSet("a", "1")
}

func TestAStreamThatCannotKeepAStateIsAFaultWithARemedy(t *testing.T) {
	server := serve(t, "")
	js, cfg := client(t, server.URL()), configFor(server.URL())
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
		err := joins(t, cfg).store.Claim(t.Context(), sinks.Claim{Group: "group", Owner: "one"})
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("want %q in: %v", words, err)
		}
		if err := js.DeleteStream(t.Context(), "STATE"); err != nil {
			t.Fatal(err)
		}
	}
	fits.MaxBytes, fits.AllowDirect = 64<<10, false
	createStream(t, js, fits)
	owner := joins(t, cfg)
	owner.claim("one")
	err := error(nil)
	for i := 0; err == nil; i++ {
		err = owner.set(fmt.Sprint(i), string(bytes.Repeat([]byte{'x', byte(i)}, 8000)))
	}
	var away *sinks.UnavailableError
	if !errors.As(err, &away) || !strings.Contains(away.Reason, `"STATE" cannot store more`) {
		t.Fatal(err)
	}
	fits.MaxBytes = -1
	if _, err := js.UpdateStream(t.Context(), fits); err != nil {
		t.Fatal(err)
	}
	owner.all()
	fresh := joins(t, cfg)
	fresh.read()
	fresh.knows(owner)
}

func TestRightsThatAStateLacksAreNamed(t *testing.T) {
	server := serve(t, `authorization { users: [
  { user: all, password: secret },
  { user: reader, password: secret, permissions: { subscribe: ">", publish: ["$JS.API.STREAM.INFO.STATE", "$JS.API.STREAM.MSG.GET.STATE"] } },
  { user: writer, password: secret, permissions: { subscribe: "_INBOX.>", publish: ["$JS.API.STREAM.INFO.STATE", "$JS.API.STREAM.MSG.GET.STATE", "$JS.API.DIRECT.GET.STATE", "STATE.>"] } }
] }
`)
	cfg := configFor(server.URL())
	lacks := func(user, word string) {
		t.Helper()
		r := joins(t, as(cfg, user))
		err := r.store.Claim(t.Context(), sinks.Claim{Group: "group", Owner: user})
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: want %q in: %v", user, word, err)
		}
	}
	lacks("reader", "$JS.API.STREAM.CREATE.STATE")
	owner := joins(t, as(cfg, "all"))
	owner.claim("all")
	owner.mustSet("a", "1")
	lacks("reader", "STATE.owner")
	reader := joins(t, as(cfg, "reader"))
	if _, err := reader.store.Read(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "$JS.API.DIRECT.GET.STATE") {
		t.Errorf("read: %v", err)
	}
	writer := joins(t, as(cfg, "writer"))
	writer.claim("writer")
	writer.mustSet("b", "2")
	deposedBy(t, owner.set("c", "3"), "writer")
}

// Two owners take the state from each other while connections are cut: a zombie is told, and nothing of it is there.
func TestAStateOverABadNetworkIsThatOfItsOwner(t *testing.T) {
	server := serve(t, "")
	p := listen(t, strings.TrimPrefix(server.URL(), "nats://"))
	cfg := hasty("nats://" + p.address())
	var writes atomic.Int64
	stop := p.cutEvery(50*time.Millisecond, writes.Load)
	defer stop()
	takeTurns(t, cfg, server.URL(), 6, func(int) { writes.Add(1) })
}

// takeTurns lets processes take a state over from each other. Each writes until after it is deposed.
func takeTurns(t *testing.T, cfg Config, url string, lives int, wrote func(life int)) {
	var before *replica
	for life := range lives {
		r := joins(t, cfg)
		r.until(func() error { return r.tryClaim(fmt.Sprint("life ", life)) })
		if before != nil {
			before.until(func() error {
				err := before.set("zombie", fmt.Sprint(life))
				if deposed := (*sinks.DeposedError)(nil); errors.As(err, &deposed) {
					return nil
				}
				return errors.Join(err, errors.New("not told yet"))
			})
			delete(before.known, "zombie")
		}
		r.until(func() error {
			_, err := r.tryRead()
			return err
		})
		if before != nil {
			r.knows(before)
		}
		for i := range 150 {
			r.until(func() error {
				return r.set(fmt.Sprint(i%70), fmt.Sprint(life, " ", i), fmt.Sprint(i%30, "-"), strings.Repeat("y", i%3*300))
			})
			wrote(life)
		}
		before = r
	}
	fresh := joins(t, configFor(url))
	fresh.readOnceThere() // a server may still be on its way back
	fresh.knows(before)
}

// until tries again and again while a fault lasts.
func (r *replica) until(do func() error) {
	r.t.Helper()
	for begun := time.Now(); ; {
		err := do()
		if err == nil {
			return
		}
		if time.Since(begun) > patience {
			r.t.Fatal(err)
		}
	}
}

func TestAReplicatedStateOutlivesTheLeadersOfItsStream(t *testing.T) {
	servers := cluster(t, direct)
	js, cfg := client(t, servers.URL()), hasty(servers.URL())
	cfg.Create.Replicas = 3
	died := map[int]bool{}
	var killing sync.WaitGroup
	takeTurns(t, cfg, servers.URL(), 4, func(life int) {
		if !died[life] {
			died[life] = true
			killing.Wait()
			killing.Go(func() {
				if err := killed(js, servers, "STATE", 1); err != nil {
					t.Error(err)
				}
			})
		}
	})
	killing.Wait()
	replicated(t, js, "STATE")
}
