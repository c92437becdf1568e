package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/credentials"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// onlyLane is the only lane: rows have one order.
const onlyLane sinks.Lane = "rows"

const (
	batchMessages = 4096
	batchBytes    = 16 << 20

	// commitEvery is how often a file is written at most, unless a whole batch waits.
	commitEvery = time.Second
	// commitBucketEvery is the same for a bucket, where a commit costs two writes and a list: half a cent an hour on AWS. A
	// call that takes ten seconds would count as silent.
	commitBucketEvery = 5 * time.Second
	// tendEvery is how often files are looked at when nothing is written. Few are merged then too.
	tendEvery       = 5 * time.Second
	tendBucketEvery = time.Minute
)

// Sink writes a history. It is used as defined by [sinks.Sink]; with one lane, there is one Publish at a time.
type Sink struct {
	cfg    Config
	store  history.Store
	writer *history.Writer // nil before the first batch
	seen   history.Seen    // see findSeen; nil if that is not known
	sent   uint64          // offset of the newest message that may be stored
	acting chan error      // receives the result of what is done at the disk; nil if nothing is
	wrote  time.Time       // when the last file was
	every  time.Duration   // commitEvery
	tends  time.Duration   // tendEvery

	tending sync.WaitGroup
	pings   sync.WaitGroup
	stop    context.CancelFunc // ends tending
	wake    chan struct{}      // there may be something to tend

	mu      sync.Mutex
	low     uint64   // see ObserveSettled
	newest  uint64   // see RestoreState
	failed  error    // of tending; nil if the last went well
	held    held     // what was acknowledged
	lost    bool     // held was found to be lost, and the caller does not know yet
	known   int64    // rows up to this sequence are settled, were stored by this process, or are among held.Again
	commits []commit // not settled, in order
}

var _ interface {
	sinks.Batched
	sinks.Stateful
	sinks.Concurrent
	sinks.Pinger
	sinks.SettleObserver
	sinks.ConditionReporter
} = (*Sink)(nil)

// New returns a sink. It touches nothing.
func New(cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	store, err := cfg.Store()
	if err != nil {
		return nil, err
	}
	s := &Sink{cfg: cfg, store: store, every: commitEvery, tends: tendEvery, stop: func() {}, wake: make(chan struct{}, 1)}
	if cfg.Bucket != "" {
		s.every, s.tends = commitBucketEvery, tendBucketEvery
	}
	return s, nil
}

// Lane implements [sinks.Sink].
func (s *Sink) Lane(*event.Change) (sinks.Lane, error) { return onlyLane, nil }

// Concurrency implements [sinks.Concurrent].
func (s *Sink) Concurrency() int { return 1 }

// BatchLimits implements [sinks.Batched].
func (s *Sink) BatchLimits() (messages int, bytes int64) { return batchMessages, batchBytes }

// Publish implements [sinks.Sink]. A batch is stored as a whole or not at all. If ctx ends meanwhile, the disk may still be
// at it; the next Publish or Close waits for that.
func (s *Sink) Publish(ctx context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
	if err := s.waitToWrite(ctx, batch); err != nil {
		return 0, err
	}
	since := sinceWhen(batch)
	if err := s.act(ctx, func() error { return s.claim(since) }); err != nil {
		return 0, s.classify(err)
	}
	if rows := newRows(s.seen, batch); len(rows) > 0 {
		s.sent = max(s.sent, batch[len(batch)-1].Offset)
		b, err := s.writer.NewBatch(rows)
		if err != nil {
			return 0, s.classify(err)
		}
		if err := s.act(ctx, b.Commit); err != nil {
			return 0, s.classify(err)
		}
		s.wrote = time.Now()
		s.recordHeld(batch[len(batch)-1].Offset)
		ratelimit.Wake(s.wake)
	}
	return len(batch), nil
}

// waitToWrite waits until it is time for the next file, so that it has what comes meanwhile. A batch that is half full does
// not wait.
func (s *Sink) waitToWrite(ctx context.Context, batch []sinks.Message) error {
	wait := time.Until(s.wrote.Add(s.every))
	size := 0
	for _, m := range batch {
		size += m.Change.Size()
	}
	if wait <= 0 || len(batch) > batchMessages/2 || size > batchBytes/2 {
		return ctx.Err()
	}
	return ratelimit.Sleep(ctx, wait)
}

// act does something at the disk, which may hang. If ctx ends first, that continues, and act returns the error of ctx.
func (s *Sink) act(ctx context.Context, do func() error) error {
	if s.acting != nil { // of a Publish whose ctx ended; its result is found out by Begin
		if _, err := s.awaitDisk(ctx); err != nil {
			return err
		}
	}
	s.acting = make(chan error, 1)
	go func(result chan<- error) { result <- do() }(s.acting)
	failure, err := s.awaitDisk(ctx)
	return errors.Join(failure, err)
}

func (s *Sink) awaitDisk(ctx context.Context) (failure, err error) {
	select {
	case failure = <-s.acting:
		s.acting = nil
		return failure, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// claim makes the writer, or makes it sure of its commits. since is as in findSeen.
func (s *Sink) claim(since time.Time) error {
	if s.writer != nil {
		err := s.writer.Begin()
		if err == nil {
			err = s.findSeen(since)
		}
		if !errors.Is(err, history.ErrGone) {
			return err
		}
		s.stop()
		s.tending.Wait()
		_ = s.writer.Close() // of a folder that is gone
		s.writer = nil
	}
	if err := s.checkHeld(); err != nil {
		return err
	}
	w, err := history.OpenWriter(s.store)
	if err != nil {
		return err
	}
	s.writer, s.seen = w, nil
	if err := s.findSeen(since); err != nil {
		s.writer = nil
		return errors.Join(err, w.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.tending.Go(func() { s.tend(ctx) })
	return nil
}

// ObserveSettled implements [sinks.SettleObserver].
func (s *Sink) ObserveSettled(low uint64) {
	s.mu.Lock()
	s.low = low
	s.mu.Unlock()
}

// tend merges files, and removes what is too old or too much, until ctx ends.
func (s *Sink) tend(ctx context.Context) {
	ticker := time.NewTicker(s.tends)
	defer ticker.Stop()
	for newest := int64(0); ; {
		idle := false
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			m, _ := s.writer.Manifest()
			newest, idle = m.LastSequence(), m.LastSequence() == newest
		case <-s.wake:
			s.mu.Lock()
			failed := s.failed
			s.mu.Unlock()
			if failed != nil { // not again before the next tick
				continue
			}
		}
		err := s.tendOnce(ctx, idle)
		s.mu.Lock()
		s.failed = err
		s.mu.Unlock()
	}
}

func (s *Sink) tendOnce(ctx context.Context, idle bool) error {
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = s.writer.Compact(idle); err != nil {
			return err
		}
	}
	var cutoff time.Time
	if s.cfg.Keep > 0 {
		cutoff = time.Now().Add(-s.cfg.Keep)
	}
	return s.writer.Retain(cutoff, s.cfg.MaxBytes)
}

// Conditions implements [sinks.ConditionReporter].
func (s *Sink) Conditions() []condition.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		return nil
	}
	return []condition.Status{condition.NewStatus("", condition.Problem{
		Code: condition.SinkFailing, Severity: condition.Degraded,
		Cause:  fmt.Sprintf("files in %s can be neither merged nor removed: %v", s.store, s.failed),
		Effect: "changes are stored; the history takes more space, and reading it takes longer",
		Remedy: "look at the disk, or at the server of the bucket; it is tried again every few seconds",
	})}
}

// Ping implements [sinks.Pinger]: the history has what was acknowledged, and can be written to.
func (s *Sink) Ping(ctx context.Context) error {
	result := make(chan error, 1)
	s.pings.Go(func() { result <- cmp.Or(s.store.Check(), s.checkHeld()) })
	select {
	case err := <-result:
		return s.classify(err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Sink) classify(failure error) error {
	switch {
	case failure == nil, errors.Is(failure, context.Canceled), errors.Is(failure, context.DeadlineExceeded),
		errors.As(failure, new(*sinks.LostError)):
		return failure
	case errors.As(failure, new(*history.FencedError)):
		return &sinks.DeposedError{Reason: fmt.Sprintf("another process writes to the history in %s", s.store), Err: failure}
	case s.cfg.Bucket != "":
		return s.classifyBucket(failure)
	}
	e := &sinks.UnavailableError{Code: condition.SinkFailing, Reason: fmt.Sprintf("cannot write to %s: %v", s.store, failure),
		Remedy: "look at the disk"}
	switch {
	case errors.Is(failure, syscall.ENOSPC), errors.Is(failure, syscall.EDQUOT), errors.Is(failure, syscall.EFBIG):
		e.Code, e.Remedy = condition.SinkFull, "free space on the disk, or keep less: history.keep, history.maxBytes"
	case errors.Is(failure, os.ErrPermission), errors.Is(failure, syscall.EROFS):
		e.Code, e.Remedy = condition.SinkUnauthorized, "see that the folder and what is in it may be written by the user of the exporter"
	case errors.Is(failure, history.ErrLocked):
		e.Code, e.Remedy = condition.SinkMisconfigured, "give each exporter a folder of its own"
	case errors.Is(failure, syscall.ENOTDIR), errors.Is(failure, syscall.EEXIST), errors.Is(failure, os.ErrNotExist):
		e.Code, e.Remedy = condition.SinkMisconfigured, "see that history.dir names a folder that can be created, and move away what is there"
	}
	return e
}

// Close waits for what is done at the disk, and gives the folder back.
func (s *Sink) Close(ctx context.Context) error {
	if s.acting != nil {
		if _, err := s.awaitDisk(ctx); err != nil {
			return fmt.Errorf("a write to %s is still running: %w", s.store, err)
		}
	}
	s.stop()
	if err := s.act(ctx, func() error { s.tending.Wait(); s.pings.Wait(); return nil }); err != nil {
		return fmt.Errorf("files in %s are still being merged or looked at: %w", s.store, err)
	}
	if s.writer == nil {
		return nil
	}
	return s.writer.Close()
}

// classifyBucket returns what an error of a bucket means to delivery.
func (s *Sink) classifyBucket(failure error) error {
	e := &sinks.UnavailableError{Code: condition.SinkFailing, Reason: fmt.Sprintf("cannot write to %s: %v", s.store, failure),
		Remedy: "see the log of the server"}
	var answer *history.AnswerError
	switch {
	case errors.Is(failure, history.ErrUnconditional):
		e.Code, e.Remedy = condition.SinkMisconfigured, "use a store with conditional writes, or history.dir"
	case errors.Is(failure, fs.ErrNotExist): // a name without a bucket
		e.Code, e.Remedy = condition.SinkMisconfigured, "correct the name in history.bucket, or create the bucket"
	case !errors.As(failure, &answer):
		peer := condition.Peer{Address: "history.bucket", Settings: "ca of history.bucket", Secure: !strings.Contains(s.cfg.Bucket, "endpoint=http:"),
			Other: "change https and http in endpoint of history.bucket"}
		p := peer.Problem(failure)
		e.Code, e.Reason, e.Remedy = p.Code, fmt.Sprintf("%s: %s", s.store, p.Cause), cmp.Or(p.Remedy, e.Remedy)
	case answer.Status == http.StatusServiceUnavailable, answer.Status == http.StatusTooManyRequests:
		e.Code, e.Remedy = condition.SinkBusy, "look at the load and the limits of the server"
	case answer.Status == http.StatusInsufficientStorage, strings.Contains(answer.Code, "Quota"), strings.HasSuffix(answer.Code, "StorageFull"):
		e.Code, e.Remedy = condition.SinkFull, "make room, or keep less: history.keep, history.maxBytes"
	case answer.Status == http.StatusUnauthorized, answer.Status == http.StatusForbidden:
		e.Code, e.Remedy = condition.SinkUnauthorized, "see the keys and their rights: s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject"
	case answer.Status < http.StatusInternalServerError: // no such bucket, or another region
		e.Code, e.Remedy = condition.SinkMisconfigured, "correct the name, the region or the endpoint in history.bucket, or create the bucket"
	}
	return e
}

// Config is where a history is, and how much of it is kept.
type Config struct {
	// The folder, for its owner only; created if absent. One exporter writes to it, and anything may read it.
	Dir string `mapstructure:"dir"`
	// In place of dir: s3://BUCKET/PREFIX?region=REGION, with endpoint=https://HOST:PORT and ca=FILE for others than AWS.
	Bucket string `json:",omitempty" mapstructure:"bucket"`
	// Keys of the bucket. Without them those of the environment, as for other clients of S3.
	Keys history.Keys `json:",omitzero" mapstructure:"keys"`
	// How long changes are kept, such as 90d. Older ones go in parts of up to a day. 0: for ever.
	Keep time.Duration `mapstructure:"keep"`
	// Bound of its size: the oldest changes go first, and about a day stays. 0: none.
	MaxBytes int64 `mapstructure:"maxBytes"`
}

// Validate checks everything that needs no access to the file system.
func (c Config) Validate() error {
	none := credentials.Secret{}
	switch {
	case c.Dir == "" && c.Bucket == "":
		return errors.New("history.dir: is missing; name a folder such as ./history, or a bucket: s3://BUCKET/PREFIX")
	case c.Dir != "" && c.Bucket != "":
		return errors.New("history.bucket: history.dir is set too; name one of them")
	case (c.Keys.ID == none) != (c.Keys.Secret == none):
		return errors.New("history.keys: only one of id and secret is set")
	case c.Keys.ID != none && c.Bucket == "":
		return errors.New("history.keys: belong to a bucket, and history.bucket is not set")
	case strings.HasPrefix(c.Dir, "s3:"), c.Bucket != "" && !strings.HasPrefix(c.Bucket, "s3:"):
		return errors.New("history.bucket: expected s3://BUCKET/PREFIX")
	}
	if _, err := c.Store(); err != nil {
		return errors.New("history.bucket: " + err.Error())
	}
	return nil
}

// Store returns where the history is. It contacts nothing.
func (c Config) Store() (history.Store, error) {
	return history.StoreAt(c.Where(), c.Keys)
}

// Files returns the files of the configuration that are read on connecting.
func (c Config) Files() []credentials.File {
	if u, err := url.Parse(c.Bucket); err == nil && u.Query().Get("ca") != "" {
		return []credentials.File{{Key: "history.bucket", Path: u.Query().Get("ca")}}
	}
	return nil
}

// Where names the place of the history.
func (c Config) Where() string { return c.Dir + c.Bucket }
