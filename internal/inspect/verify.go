package inspect

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/internal/verify"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// CloseReaderTimeout bounds the end of the connections to a bus.
const CloseReaderTimeout = 5 * time.Second

// VerifyOptions select what is verified.
type VerifyOptions struct {
	Sink       string // name; "" is the only sink that can be verified
	Bodies     bool   // compare contents, too
	StreamOnly bool   // check the stream alone
	Repair     bool   // have the running exporter emit again what differs
	Wait       time.Duration
	Progress   io.Writer
	Version    string // of the program
}

// Verify compares a sink with the cluster.
func Verify(ctx context.Context, cfg *config.Config, o VerifyOptions) (*verify.Result, error) {
	s, err := ChooseStoredSink(cfg, o.Sink)
	if err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	if s.HasRowsOnly() && !o.StreamOnly {
		return nil, exit.With(exit.Environment, fmt.Errorf("not verified: the sink %s has rows only, and no watermark shows up to which "+
			"version they are complete; use --stream-only, or verify a sink without `schema` and `rowsOnly`", s.Name))
	}
	if s.Watermarks == 0 && !o.StreamOnly {
		return nil, exit.With(exit.Environment, fmt.Errorf("not verified: the sink %s has no watermarks, so nothing shows up to which version "+
			"its records are complete; set `watermarks: 10s` in it, or use --stream-only", s.Name))
	}
	reader, err := app.OpenStoredReader(s)
	if err != nil {
		return nil, exit.With(exit.Environment, err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseReaderTimeout)
		defer cancel()
		_ = reader.Close(closing) // it only read
	}()
	f, err := s.ParseFormat()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // guards o.Progress
	v := verify.Options{Sink: s.Name, Format: f, Cluster: cfg.Cluster.Name, Reader: reader, Wait: o.Wait, Progress: func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(o.Progress, line)
	}}
	var result *verify.Result
	if o.StreamOnly {
		result, err = verifyStream(ctx, cfg, s, v)
	} else {
		result, err = verifyCluster(ctx, cfg, s, v, o, nil)
	}
	if err == nil && o.Repair && len(result.Differing()) > 0 {
		err = repairAndVerify(ctx, cfg, s, v, o, result)
	}
	return result, exit.With(exit.Environment, err)
}

// repairAndVerify has the running exporter emit again what differs, and verifies the sink again, behind that.
func repairAndVerify(ctx context.Context, cfg *config.Config, s config.Sink, v verify.Options, o VerifyOptions, result *verify.Result) error {
	result.Repair = &verify.Repair{Resources: []verify.ScopeRepair{}}
	client, err := signals.NewClient(cfg.Journal.Dir)
	if err == nil {
		r := &repairer{client: client, sink: s.Name, wait: o.Wait, progress: v.Progress, result: result.Repair}
		err = r.repair(ctx, result.Differing())
	}
	if err == nil && result.Repair.HasSignals() {
		result.Repair.After, err = verifyCluster(ctx, cfg, s, v, o, result.Differing())
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		result.Repair.Reason = err.Error()
	}
	return nil
}

// askWatermarks has the running exporter emit a watermark of each resource, and lets only those count that are behind the
// present ends of the lanes. It returns why an older one counts; "" if none does.
func askWatermarks(ctx context.Context, cfg *config.Config, v *verify.Options) string {
	client, err := signals.NewClient(cfg.Journal.Dir)
	if err != nil {
		return err.Error()
	}
	v.After = map[string][]int64{}
	for _, t := range v.Targets {
		if _, known := v.After[t.Topic]; !known && t.Reason == "" {
			v.After[t.Topic], _ = verify.Ends(ctx, v.Reader, t.Topic) // what cannot be read is refused with its reason
		}
	}
	answer, err := client.Submit(ctx, signals.Request{Kind: signals.Watermark, Sink: v.Sink})
	if err == nil && answer.State == signals.Done {
		return ""
	}
	v.After = nil
	if err != nil {
		return err.Error()
	}
	return answer.Result
}

// VerifyError returns the error with the exit code of an outcome; nil if nothing differs and everything was verified. Behind
// a repair that of the verification after it counts, and what could not be verified before.
func VerifyError(r *verify.Result) error {
	unverified := slices.ContainsFunc(r.Resources, func(s *verify.ScopeResult) bool { return s.Outcome == verify.OutcomeNotVerified })
	if r.Repair != nil {
		switch {
		case r.Repair.Reason != "":
			return exit.With(exit.Environment, errors.New("the repair is not complete"))
		case r.Repair.After != nil:
			r = r.Repair.After
		}
	}
	switch {
	case r.Outcome == verify.OutcomeDifferent:
		return exit.With(exit.Different, errors.New("the stream and the cluster differ"))
	case unverified || r.Outcome == verify.OutcomeNotVerified:
		return exit.With(exit.Environment, errors.New("not everything could be verified"))
	default:
		return nil
	}
}

// ChooseStoredSink returns the sink with a name, or the only one that can be read back.
func ChooseStoredSink(cfg *config.Config, name string) (config.Sink, error) {
	var found []config.Sink
	var names []string
	for _, s := range cfg.Sinks {
		if s.Name == name {
			if s.Kafka == nil && s.NATS == nil {
				return s, fmt.Errorf("the sink %s cannot be read back: only Kafka and NATS can; name a sink of one of them", name)
			}
			return s, nil
		}
		if s.Kafka != nil || s.NATS != nil {
			found, names = append(found, s), append(names, s.Name)
		}
	}
	switch {
	case name != "":
		return config.Sink{}, fmt.Errorf("no sink %q is configured", name)
	case len(found) == 0:
		return config.Sink{}, errors.New("no sink can be read back: expected one with kafka, or with nats")
	case len(found) > 1:
		return config.Sink{}, fmt.Errorf("--sink is missing: expected one of %s", strings.Join(names, ", "))
	}
	return found[0], nil
}

// verifyStream checks the topics of a sink by themselves.
func verifyStream(ctx context.Context, cfg *config.Config, s config.Sink, v verify.Options) (*verify.Result, error) {
	if s.NATS != nil {
		return verify.RunStream(ctx, v, []string{""})
	}
	found, err := selection.ResolveWritten(config.SelectionRules(cfg.Resources))
	if err != nil {
		return nil, err
	}
	var topics []string
	name := func(c *event.Change, template *sinks.Template) {
		switch topic, err := topicOf(s, template, c); {
		case err != nil, strings.Contains(c.Resource.Resource+c.Resource.Group+c.Resource.Version, "*"):
			v.Notes = append(v.Notes, "topics of "+c.Resource.String()+" are known with a cluster only, and were not read")
		case !slices.Contains(topics, topic):
			topics = append(topics, topic)
		}
	}
	destination, err := app.WatermarkTopics(cfg, s.Name)
	if err != nil {
		return nil, err
	}
	for _, m := range found.Matches {
		if m.SkipReason != "" {
			continue
		}
		c := &event.Change{Type: event.Watermark, Cluster: cfg.Cluster.Name, Resource: m.Resource}
		if topic, delivered, _ := destination(c); delivered {
			name(c, topic)
		}
	}
	slices.Sort(topics)
	return verify.RunStream(ctx, v, topics)
}

// topicOf returns the topic of a change: by the template of a route, or of the sink.
func topicOf(s config.Sink, template *sinks.Template, c *event.Change) (string, error) {
	if s.Kafka == nil {
		return "", nil
	}
	if template == nil {
		var err error
		if template, err = sinks.ParseTemplate(s.Kafka.Topic); err != nil {
			return "", err
		}
	}
	return kafka.TopicName(template, c)
}

// verifyCluster compares a sink with the cluster: what has been repaired alone, if there is something.
func verifyCluster(
	ctx context.Context, cfg *config.Config, s config.Sink, v verify.Options, o VerifyOptions, repaired []verify.Differing,
) (*verify.Result, error) {
	client, err := app.NewClient(cfg, o.Version)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found, err := client.Explain(ctx, config.SelectionRules(cfg.Resources))
	if err != nil {
		return nil, err
	}
	if v.Cluster == "" {
		if v.Cluster, err = client.ClusterUID(ctx); err != nil {
			return nil, fmt.Errorf("the cluster's name is the UID of the namespace kube-system, which cannot be read: %w; set cluster.name, or "+
				"allow get on that namespace", err)
		}
	}
	if v.Targets, v.Notes, err = verifiedTargets(cfg, s, v.Cluster, found); err != nil {
		return nil, err
	}
	if repaired != nil {
		v.Targets = slices.DeleteFunc(v.Targets, func(t verify.Target) bool {
			return !slices.ContainsFunc(repaired, func(d verify.Differing) bool { return d.Scope.ID == t.Scope.ID })
		})
	}
	v.AnyAge = repaired == nil
	switch reason := askWatermarks(ctx, cfg, &v); {
	case reason != "" && repaired != nil:
		return nil, errors.New("no watermark can be asked for behind the repair: " + reason)
	case reason != "":
		v.Notes = append(v.Notes, "compared at watermarks that were there before, and what was written since is not seen: "+reason)
	}
	v.List = func(ctx context.Context, scope selection.Scope, at string, to source.Reading) (string, string, error) {
		return source.ReadScope(ctx, client, scope, at, to)
	}
	if o.Bodies {
		if v.Shape, err = newBodyShaper(cfg, v.Cluster); err != nil {
			return nil, err
		}
	}
	return verify.Run(ctx, v)
}

// verifiedTargets returns the scopes that the rules select, and where the sink delivers them.
func verifiedTargets(cfg *config.Config, s config.Sink, cluster string, found *selection.Explanation) (all []verify.Target, notes []string, err error) {
	destination, err := app.WatermarkTopics(cfg, s.Name)
	if err != nil {
		return nil, nil, err
	}
	for _, u := range found.Unserved {
		notes = append(notes, fmt.Sprintf("%s: %s is not verified: %s", pathOf(u.Rule, u.Select), u.Name, u.Reason))
	}
	for _, group := range found.Unanswered {
		all = append(all, verify.Target{
			Scope:  selection.Scope{Resource: event.Resource{Group: group, Resource: "*"}},
			Reason: "the API server did not answer what the group has; check its aggregated API",
		})
	}
	for _, scope := range found.Scopes() {
		c := &event.Change{Type: event.Watermark, Cluster: cluster, Resource: scope.Resource, Namespace: scope.Namespace}
		topic, delivered, whole := destination(c)
		t := verify.Target{Scope: scope}
		switch {
		case !delivered && !whole && topic == nil && !getsAny(cfg, s.Name, c):
			notes = append(notes, scope.ID+" does not go to this sink")
			continue
		case !delivered:
			t.Reason = "routes spread the resource over several topics of this sink, which therefore get no watermarks; verify another sink"
		case !whole:
			t.Reason = "routes send only a part of the resource to this sink, so its watermarks have no digest; verify another sink"
		default:
			if t.Topic, err = topicOf(s, topic, c); err != nil {
				t.Reason = err.Error()
			}
		}
		all = append(all, t)
	}
	return all, notes, nil
}

// getsAny reports whether the sink may get changes of the resource of c.
func getsAny(cfg *config.Config, sink string, c *event.Change) bool {
	for _, r := range cfg.Routes {
		if !routeMayMatch(r, c) {
			continue
		}
		if slices.ContainsFunc(r.To, func(t config.Target) bool { return t.Sink == sink }) {
			return true
		}
		if r.IsUnconditional() {
			return false
		}
	}
	return true
}

// newBodyShaper returns a function that returns the contents of objects as this configuration emits them: redacted, and with
// the selected fields.
func newBodyShaper(cfg *config.Config, cluster string) (func(selection.Scope, *deltas.Object) ([]byte, error), error) {
	policies := make([]shape.Policy, len(cfg.Resources))
	for i, r := range cfg.Resources {
		p := r.Policy
		p.Filter, p.OnlyIfChanged, p.IgnoreChanges, p.Before, p.Changed = "", nil, nil, "", "" // of changes, not of contents
		policies[i] = p
	}
	shaper, err := shape.New(policies, shape.Options{Key: []byte(cfg.Redaction.Key), JournalSecret: []byte(rand.Text()), Bodies: noBodies{}})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // guards shaped
	var shaped *event.Change
	appends := make([]event.AppendFunc, len(policies))
	for i := range appends {
		appends[i] = shaper.WrapAppend(i, func(_ context.Context, o event.Observation) error {
			shaped = o.Changes[0]
			return nil
		})
	}
	return func(scope selection.Scope, o *deltas.Object) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		c := &event.Change{
			Type: event.Snapshot, Cluster: cluster, Resource: scope.Resource, Namespace: o.Namespace, Name: o.Name, UID: o.UID,
			ResourceVersion: o.ResourceVersion, After: o.Raw,
		}
		if err := appends[scope.Rule](context.Background(), event.Observation{Resource: scope.Resource, Changes: []*event.Change{c}}); err != nil {
			return nil, err
		}
		if shaped.Withheld != "" {
			return nil, fmt.Errorf("%s: %s", o.Name, shaped.Withheld)
		}
		return shaped.After, nil
	}, nil
}

// noBodies stores no bodies.
type noBodies struct{}

func (noBodies) Body(string, string) (event.Body, bool, error) { return event.Body{}, false, nil }
func (noBodies) BodyResources() []string                       { return nil }
func (noBodies) DropBodies(context.Context, string) error      { return nil }
