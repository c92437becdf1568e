package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/signals"
)

// SendSignal asks an exporter for something, and writes the signal that this makes.
func SendSignal(ctx context.Context, client *signals.Client, r signals.Request, asJSON bool, out io.Writer) error {
	s, err := client.Submit(ctx, r)
	return writeSignal(s, err, asJSON, out)
}

// writeSignal writes what became of a signal, or returns why it is not in force. One without an ID was sent to no exporter.
func writeSignal(s signals.Signal, err error, asJSON bool, out io.Writer) error {
	switch {
	case err != nil && s.ID != "":
		return exit.With(exit.Runtime, fmt.Errorf("signal %s: %w; exporter signal list shows what became of it", s.ID, err))
	case err != nil && s.State != "":
		return exit.With(exit.Runtime, fmt.Errorf("%s: %s", describeRequest(s), s.Result))
	case err != nil:
		return signalExitError(err)
	case s.State == signals.Refused:
		return usageErrorf("%s is refused: %s", describeRequest(s), s.Result)
	case asJSON:
		return json.NewEncoder(out).Encode(s)
	}
	_, err = fmt.Fprintln(out, describeSignal(s))
	return err
}

// describeRequest names a signal: by its ID, if it has one.
func describeRequest(s signals.Signal) string {
	if s.ID == "" {
		return fmt.Sprintf("%s of %s", s.Kind, s.Subject())
	}
	return "signal " + s.ID
}

// describeSignal returns what became of a signal, in one line.
func describeSignal(s signals.Signal) string {
	text := fmt.Sprintf("%s of %s: ", s.Kind, s.Subject())
	if s.ID != "" {
		text = "signal " + s.ID + ": " + text
	}
	switch {
	case s.State != signals.Active:
		return text + string(s.State) + ": " + s.Result
	case s.Kind == signals.Snapshot, s.Kind == signals.Replay:
		return text + s.Result
	case s.Until.IsZero():
		text += "in force until it is resumed; "
	default:
		text += fmt.Sprintf("in force until %s; ", s.Until.Format(time.RFC3339))
	}
	if s.Rule != "" {
		return text + "nothing of it is read; once the API server no longer has the history, after a few minutes, it goes on with a gap"
	}
	return text + fmt.Sprintf("%d changes wait", s.Count)
}

// ListSignals writes the signals that an exporter keeps, the oldest first: as text, or as one JSON object per line.
func ListSignals(ctx context.Context, client *signals.Client, asJSON bool, out io.Writer) error {
	all, err := client.List(ctx)
	if err != nil {
		return signalExitError(err)
	}
	if asJSON {
		e := json.NewEncoder(out)
		for _, s := range all {
			if err := e.Encode(s); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tTIME\tSIGNAL\tOF\tSTATE\tENDED\tRESULT")
	for _, s := range all {
		ended, result, of := "", s.Result, s.Sink
		if s.Rule != "" {
			of = s.Subject().String()
		}
		if !s.Ended.IsZero() {
			ended = s.Ended.Format(time.RFC3339)
		} else if !s.Until.IsZero() {
			result = "until " + s.Until.Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.ID, s.Created.Format(time.RFC3339), orDash(string(s.Kind)), orDash(of), s.State, orDash(ended),
			orDash(strings.Map(replaceUnprintable, result)))
	}
	return t.Flush()
}

// signalExitError adds the exit code to an error of a client.
func signalExitError(err error) error {
	var denied *signals.DeniedError
	var invalid *signals.InvalidError
	switch {
	case isAway(err) || errors.As(err, &denied):
		return exit.With(exit.Environment, err)
	case errors.As(err, &invalid):
		return usageErrorf("the signal is refused: %w", err)
	}
	return exit.With(exit.Runtime, err)
}
