package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/state"
)

// stateTimeout bounds the requests of a command to the bus.
const stateTimeout = time.Minute

// withState opens the configured state, calls do with it, and closes it.
func withState(ctx context.Context, cfg *config.Config, do func(context.Context, *state.Writer) error) error {
	k, closed, err := app.OpenState(cfg)
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	return exit.Default(exit.Environment, errors.Join(do(ctx, k), closed(ctx)))
}

// ShowState writes the owner, the progress and the contents of the replicated state, as text or as JSON.
func ShowState(ctx context.Context, cfg *config.Config, asJSON bool, out io.Writer) error {
	return withState(ctx, cfg, func(ctx context.Context, k *state.Writer) error {
		r, err := k.Inspect(ctx)
		var refused *state.RefusedError
		if err != nil && !errors.As(err, &refused) {
			return err
		}
		if asJSON {
			return errors.Join(exit.With(exit.Runtime, err), json.NewEncoder(out).Encode(r))
		}
		return errors.Join(exit.With(exit.Runtime, err), writeStateText(&r, out))
	})
}

// ResetState removes the replicated state.
func ResetState(ctx context.Context, cfg *config.Config, out io.Writer) error {
	return withState(ctx, cfg, func(ctx context.Context, k *state.Writer) error {
		n, err := k.Reset(ctx)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "removed %d entries; an exporter with a journal continues from its journal, any other one begins with a snapshot\n", n)
		return err
	})
}

func writeStateText(r *state.Report, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	if r.Version == 0 {
		fmt.Fprintln(w, "there is no state")
		return w.Flush()
	}
	fmt.Fprintf(w, "format\t%d\ndeployment\t%s\nlease\t%s\ncluster\t%s\n", r.Version, r.Deployment, r.Lease, r.Cluster)
	fmt.Fprintf(w, "owner\t%s since %s, failover %d\n", r.Owner, r.Since.Format(time.RFC3339), r.Generation)
	complete := "yes"
	if !r.Complete {
		complete = "no: until every sink has delivered what the journal held at its creation, it is valid for the listed lanes only"
	}
	fmt.Fprintf(w, "complete\t%s\ncheckpoint\toffset %d at %s\n", complete, r.Offset, r.CheckpointAt.Format(time.RFC3339))
	fmt.Fprintf(w, "holds\t%d objects, %d bytes\n", r.Objects, r.Bytes)
	for _, resource := range r.Resources {
		fmt.Fprintf(w, "\n%s\t%d objects\n", resource.Name, resource.Objects)
		for _, s := range resource.Scopes {
			position := "at " + s.Position
			if s.Position == "" {
				position = "to be listed"
			}
			fmt.Fprintf(w, "  %s\t%s\n", s.ID, position)
		}
	}
	if len(r.Lanes) > 0 {
		fmt.Fprintln(w)
	}
	for _, l := range r.Lanes {
		fmt.Fprintf(w, "%s\t%s\tcovered to %d\n", l.Sink, l.Lane, l.Position)
	}
	return w.Flush()
}
