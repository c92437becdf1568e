package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/history"
	"github.com/kubecdc/kubecdc/internal/history/serve"
	sink "github.com/kubecdc/kubecdc/pkg/sinks/history"
)

// defaultHistory is the folder that is read if no place is named.
const defaultHistory = "./history"

func historyCommand() *cobra.Command {
	return groupCommand("history", "Ask what changed, by whom, and what existed at a moment",
		`Ask what changed, by whom, and what existed at a moment, from the folder that the
sink "history" writes: see 'exporter run --history'. No cluster is contacted.

With --config and --sink the topics or the stream of a sink are read, of the formats json
and CloudEvents, through an index: a history in a folder, which each command continues.

TYPE is as kubectl takes it: plural, singular, short name or kind. A moment is a time
(2026-01-02T15:04:05Z, 2026-01-02, 15:04), how long ago (30m, 2h, 3d), or a
resourceVersion (rv:4711), which is exact where times are known to seconds.

What the history does not know, because it begins later or has a gap, is named on
standard error, and the exit code is 5.`,
		historyLogCommand(), historyGetCommand(), historyDiffCommand(), historyBlameCommand(), historyServeCommand(), historyRedactCommand(), historyPageCommand())
}

// historyFlags are the flags that all commands of history have.
type historyFlags struct {
	dir       string
	namespace string
	output    *choice
	indexFlags
}

func addHistoryFlags(cmd *cobra.Command, formats ...string) *historyFlags {
	f := &historyFlags{}
	f.addPlaceFlags(cmd)
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "only this namespace; all without")
	cmd.Flags().BoolP("all-namespaces", "A", false, "all namespaces, as without -n")
	cmd.MarkFlagsMutuallyExclusive("all-namespaces", "namespace")
	f.output = choiceFlag(cmd, "output", "o", "form: "+strings.Join(formats, ", "), formats...)
	return f
}

// ask opens the history, and has a question answered about the scope that the arguments name.
func (f *historyFlags) ask(cmd *cobra.Command, args []string, answer func(context.Context, *history.History, history.Scope) error) error {
	ctx, stop := untilInterrupted(cmd.Context())
	defer stop()
	if err := f.openSource(cmd); err != nil {
		return err
	}
	defer f.closeSource()
	if err := f.fill(ctx); err != nil {
		return err
	}
	h, err := history.Open(f.dir)
	if err != nil {
		return err
	}
	s, err := history.ParseScope(ctx, h, args, f.namespace)
	if err == nil {
		err = answer(ctx, h, s)
	}
	return exit.Default(exit.Runtime, errors.Join(err, h.Close()))
}

// momentFlag adds a flag that is a moment.
func momentFlag(cmd *cobra.Command, name, usage string) func() (history.Moment, error) {
	text := cmd.Flags().String(name, "", usage)
	return func() (history.Moment, error) {
		if *text == "" {
			return history.Moment{}, nil
		}
		m, err := history.ParseMoment(*text, time.Now())
		if err != nil {
			return m, exit.With(exit.Usage, fmt.Errorf("--%s: %w", name, err))
		}
		return m, nil
	}
}

// parseMoments reads flags that are moments.
func parseMoments(flags ...func() (history.Moment, error)) (all []history.Moment, err error) {
	for _, parse := range flags {
		m, err := parse()
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// sayDoubt names what is not known, and returns the error for it.
func sayDoubt(w io.Writer, doubt history.Doubt) error {
	for _, line := range doubt.Lines() {
		fmt.Fprintln(w, "! "+line)
	}
	if doubt.Any() {
		return exit.With(exit.Unknown, errors.New("a part of the answer is not known"))
	}
	return nil
}

func historyLogCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log [TYPE[/NAME] | TYPE NAME] [-n NAMESPACE] [--since MOMENT] [--until MOMENT] [--by USER] [--path PATH] [-o table|json|yaml|audit] [-f]",
		Short: "Show what changed, when, by whom, from what to what",
		Long: `Show what changed, when, by whom, from what to what: a line for each change, oldest
first, and gaps in their place. -o json has all changed paths of a change. -o audit is
the audit log of an API server for programs that read these, such as Kubernetes History
Inspector: an event of audit.k8s.io/v1 for each change, with the object as it then was.
Gaps are on standard error then.

With -f it goes on with what is written from then on. An author that comes later than
its change has a line of its own then.`,
		Example: `  exporter history log -n shop --since 30m
  exporter history log deploy/web --path spec.replicas
  exporter history log --by alice --since 2026-01-02 -o json
  exporter history log -n shop --since 2h -o audit > audit.jsonl`,
		Args: cobra.MaximumNArgs(2),
	}
	f := addHistoryFlags(cmd, history.Table, history.JSON, history.YAML, history.Audit)
	since, until := momentFlag(cmd, "since", "only changes from this moment on"), momentFlag(cmd, "until", "only changes up to this moment")
	by := cmd.Flags().String("by", "", `only changes of this user or field manager; "*" stands for any text but "/"`)
	path := cmd.Flags().String("path", "", "only changes of this field, or of what is in it: spec.replicas")
	follow := cmd.Flags().BoolP("follow", "f", false, "go on with new changes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		moments, err := parseMoments(since, until)
		if err != nil {
			return err
		}
		return f.ask(cmd, args, func(ctx context.Context, h *history.History, s history.Scope) error {
			p := history.Printer{Out: cmd.OutOrStdout(), Format: f.output.value, Beside: cmd.ErrOrStderr()}
			o := history.LogOptions{Scope: s, Since: moments[0], Until: moments[1], By: *by, Path: *path, Objects: p.Format == history.Audit}
			if err := h.Log(ctx, o, p.PrintEntry); err != nil || !*follow {
				return err
			}
			return f.follow(ctx, func(ctx context.Context) error { return history.Follow(ctx, f.dir, h, o, p.PrintEntry) })
		})
	}
	return cmd
}

func historyGetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get TYPE[/NAME] | TYPE NAME --at MOMENT [-n NAMESPACE] [-o table|yaml|json|name]",
		Short: "Show objects as they were at a moment",
		Example: `  exporter history get deploy/web -n shop --at 14:05 -o yaml
  exporter history get pods -n shop --at 2h`,
		Args: cobra.RangeArgs(1, 2),
	}
	f := addHistoryFlags(cmd, history.Table, history.YAML, history.JSON, history.Name)
	at := momentFlag(cmd, "at", "the moment")
	requireFlags(cmd, "at")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		m, err := at()
		if err != nil {
			return err
		}
		return f.ask(cmd, args, func(ctx context.Context, h *history.History, s history.Scope) error {
			p := history.Printer{Out: cmd.OutOrStdout(), Format: f.output.value, Single: s.Name != "" && f.namespace != ""}
			doubt, err := h.Print(ctx, &p, s, m)
			if err != nil {
				return err
			}
			if err := sayDoubt(cmd.ErrOrStderr(), doubt); err != nil {
				return err
			}
			if s.Name != "" && p.Printed == 0 {
				return fmt.Errorf("%s did not exist at %s: 'exporter history log' shows when it did", s, m)
			}
			return nil
		})
	}
	return cmd
}

func historyDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff [TYPE[/NAME] | TYPE NAME] --from MOMENT [--to MOMENT] [-n NAMESPACE] [-o table|json|yaml]",
		Short: "Show what differs between two moments, field by field",
		Example: `  exporter history diff deploy/web -n shop --from 14:00 --to 14:30
  exporter history diff -n shop --from 2h`,
		Args: cobra.MaximumNArgs(2),
	}
	f := addHistoryFlags(cmd, history.Table, history.JSON, history.YAML)
	from, to := momentFlag(cmd, "from", "the earlier moment"), momentFlag(cmd, "to", "the later moment; the newest change without")
	requireFlags(cmd, "from")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		moments, err := parseMoments(from, to)
		if err != nil {
			return err
		}
		return f.ask(cmd, args, func(ctx context.Context, h *history.History, s history.Scope) error {
			p := history.Printer{Out: cmd.OutOrStdout(), Format: f.output.value}
			doubt, err := h.Diff(ctx, s, moments[0], h.OrNewest(moments[1]), p.PrintDifference)
			if err != nil {
				return err
			}
			return sayDoubt(cmd.ErrOrStderr(), doubt)
		})
	}
	return cmd
}

func historyBlameCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "blame TYPE/NAME | TYPE NAME [-n NAMESPACE] [-o table|json|yaml]",
		Short: "Show since when each field of an object has its value, and by whom",
		Long: `Show since when each field of an object has its value, and by whom. A time after "≤" is
that of a list: the field may have had its value for longer.`,
		Example: "  exporter history blame deploy/web -n shop",
		Args:    cobra.RangeArgs(1, 2),
	}
	f := addHistoryFlags(cmd, history.Table, history.JSON, history.YAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.ask(cmd, args, func(ctx context.Context, h *history.History, s history.Scope) error {
			if s.Name == "" {
				return exit.With(exit.Usage, errors.New("name an object: TYPE/NAME"))
			}
			all, err := h.Blame(ctx, s)
			if err != nil {
				return err
			}
			p := history.Printer{Out: cmd.OutOrStdout(), Format: f.output.value}
			return p.PrintBlames(all)
		})
	}
	return cmd
}

func historyServeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve --at MOMENT | --from MOMENT [--until MOMENT] [--speed N] [--kubeconfig FILE]",
		Short: "Serve the cluster as it was, at a moment or from then on, to kubectl",
		Long: `Serve the cluster as it was, as a read-only Kubernetes API on 127.0.0.1, until interrupted:
for kubectl and every other client. With --at it is one moment, of which a watch shows what
existed, and then nothing. With --from everything happens again from that moment on; at the
end, of the history or --until, time stands still.

The kubeconfig is written for this user alone and removed at the end. A list that the
history does not know is refused with the reason, and a watch ends there; what else to know
is a warning.`,
		Example: `  exporter history serve --at 14:05
  exporter history serve --from 14:00 --until 14:10 --speed 10
  kubectl --kubeconfig history.kubeconfig get pods -A -w`,
		Args: cobra.NoArgs,
	}
	f := historyFlags{}
	f.addPlaceFlags(cmd)
	file := cmd.Flags().String("kubeconfig", "history.kubeconfig", "the kubeconfig to write")
	at, from := momentFlag(cmd, "at", "the moment"), momentFlag(cmd, "from", "the moment from which on everything happens again")
	until := momentFlag(cmd, "until", "the moment at which time stands still; the newest change without")
	speed := cmd.Flags().Float64("speed", 1, "how many seconds pass in one")
	cmd.MarkFlagsOneRequired("at", "from")
	for _, replay := range []string{"from", "until", "speed"} {
		cmd.MarkFlagsMutuallyExclusive("at", replay)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		moments, err := parseMoments(at, from, until)
		if err != nil {
			return err
		}
		if !(*speed > 0 && *speed <= maxSpeed) {
			return exit.With(exit.Usage, fmt.Errorf("--speed: expected more than 0 and at most %d, found %v", maxSpeed, *speed))
		}
		if moments[2].IsBefore(moments[1]) {
			return exit.With(exit.Usage, fmt.Errorf("--until: expected a moment after --from %s, found %s", moments[1], moments[2]))
		}
		debug.SetGCPercent(gcPercentOfServe)
		return f.ask(cmd, nil, func(ctx context.Context, h *history.History, _ history.Scope) error {
			return serveHistory(ctx, cmd, h, moments, *speed, *file)
		})
	}
	return cmd
}

func historyRedactCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "redact --config FILE [--dir PLACE]",
		Short: "Redact what a history has by edited rules",
		Long: `Redact what the histories of a configuration have by its rules of today: objects, and the
values of changes. Files that have such values are written again, and removed.

Stop the exporter before. One that writes to a folder is an error; one that writes to a
bucket stops, or takes it back: then repeat the command, which goes on.`,
		Example: "  exporter history redact --config exporter.yaml",
		Args:    cobra.NoArgs,
	}
	path := cmd.Flags().StringP("config", "c", "", "configuration file (YAML)")
	dir := cmd.Flags().String("dir", "", "another folder or bucket, such as a copy")
	completeConfig(cmd)
	requireFlags(cmd, "config")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(*path)
		if err != nil {
			return err
		}
		var all []sink.Config
		for _, s := range cfg.Sinks {
			if s.History != nil && *dir == "" {
				all = append(all, *s.History)
			}
		}
		if *dir != "" {
			all = append(all, sink.Config{Dir: *dir})
		}
		if len(all) == 0 {
			return exit.With(exit.Usage, errors.New("the configuration has no sink with a history: name one with --dir"))
		}
		for _, c := range all {
			rows, err := app.RedactHistory(cfg, c)
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d rows redacted\n", c.Where(), rows)
			if err != nil {
				return exit.With(exit.Environment, err)
			}
		}
		return nil
	}
	return cmd
}

func historyPageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "page [--config FILE | --dir PLACE]",
		Short: "Print the address of the timeline on an exporter's status page, with its password",
		Long: `Print the address of the timeline on the status page of a running exporter, with the
password of this run. Run it on the machine of the exporter, or in its container, as the
exporter's user; a browser elsewhere comes by kubectl port-forward.`,
		Example: `  exporter history page
  kubectl -n kubecdc exec exporter-0 -- /exporter history page --config /etc/kubecdc/config.yaml`,
		Args: cobra.NoArgs,
	}
	path := cmd.Flags().StringP("config", "c", "", "configuration file (YAML) of the exporter")
	dir := cmd.Flags().String("dir", defaultHistory, "history of an exporter that runs with --history")
	cmd.MarkFlagsMutuallyExclusive("config", "dir")
	completeConfig(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		load, of := config.ForHistory, *dir
		if *path != "" {
			load, of = config.LoadWithoutSinkFiles, *path
		}
		cfg, err := load(of)
		if err != nil {
			return err
		}
		address, err := os.ReadFile(app.TimelineFile(cfg))
		if err != nil {
			return exit.With(exit.Environment, fmt.Errorf("no exporter with a history and a status page runs with this journal: %w", err))
		}
		_, err = cmd.OutOrStdout().Write(address)
		return err
	}
	return cmd
}

// gcPercentOfServe keeps a replay, and an index that is filled, near the memory of what is alive: objects come and go.
const gcPercentOfServe = 30

// maxSpeed passes a year in half a minute.
const maxSpeed = 1_000_000

// serveHistory serves a moment, or what happened from one to another at a speed, of moments: at, from, until.
func serveHistory(ctx context.Context, cmd *cobra.Command, h *history.History, moments []history.Moment, speed float64, file string) error {
	m, until := moments[0], h.OrNewest(moments[2])
	isReplay := m.IsZero()
	if isReplay {
		m = moments[1]
	}
	state, err := serve.Load(ctx, h, m)
	if err != nil {
		return err
	}
	for _, note := range state.Notes {
		fmt.Fprintln(cmd.ErrOrStderr(), "! "+note)
	}
	say := func(format string, args ...any) { fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...) }
	return serve.Run(ctx, state, file, func(ctx context.Context) error {
		if !isReplay {
			say("The cluster as it was at %s, until interrupted:\n  kubectl --kubeconfig %s get pods -A", m, file)
			return nil
		}
		say("The cluster as it was from %s on, until interrupted:\n  kubectl --kubeconfig %s get pods -A -w", m, file)
		err := serve.Replay(ctx, h, state, until, speed)
		if err == nil && ctx.Err() == nil {
			say("It stands still at %s.", until)
		}
		return err
	})
}

func requireFlags(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the caller has just defined the flag
		}
	}
}
