package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify --config FILE [--sink NAME] [--bodies] [--repair | --stream-only] [-o json]",
		Short: "Compare what a sink has delivered with the cluster, at exactly one version",
		Long: `Compare what a sink has delivered with the cluster, at exactly one version.

The newest watermark of each resource names a version of the cluster. The cluster is
listed at exactly that version, the topic, stream or bucket is read up to the watermark,
and each object is compared: equal, missing, ghost (it does not exist), stale (an older
version) or different. The exporter may run meanwhile; without --repair nothing is
written anywhere.

With --stream-only no cluster is asked: the order of records, their IDs, the digests
of snapshots and watermarks, and gaps are checked.

With --repair the running exporter is asked to emit the objects that differ again, by
signals as of exporter signal snapshot, and then the sink is verified once more. Run it
where signals can be sent: on the exporter's machine or in its container. Nothing of a
resource that could not be verified is repaired.

The exit code is 0 if everything is equal, 4 if something differs, and 3 if something
could not be verified, or the repair not be carried out, which the result explains;
after a repair that of the second verification counts. docs/verifying.md describes what is
found and what is not.`,
		Example: `  exporter verify --config config.yaml
  exporter verify --config config.yaml --sink main --bodies -o json
  exporter verify --config config.yaml --sink main --repair
  exporter verify --config config.yaml --sink main --stream-only`,
		Args: cobra.NoArgs,
	}
	path := configFlag(cmd)
	o := inspect.VerifyOptions{Version: version}
	cmd.Flags().StringVar(&o.Sink, "sink", "", "name of the sink; may be left out if only one can be verified")
	cmd.Flags().BoolVar(&o.Bodies, "bodies", false, "compare contents, too, as the rules of the configuration shape them")
	cmd.Flags().BoolVar(&o.StreamOnly, "stream-only", false, "check only what the topic, stream or bucket shows by itself")
	cmd.Flags().BoolVar(&o.Repair, "repair", false, "have the running exporter emit again what differs, and verify again")
	cmd.Flags().DurationVar(&o.Wait, "wait", 150*time.Second, "wait no longer for a watermark of each resource, and for the end of each signal")
	output := outputFlag(cmd, "form of the result: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case o.Bodies && o.StreamOnly:
			return errors.New("--bodies compares with the cluster, which --stream-only does not ask; give one of them")
		case o.Repair && o.StreamOnly:
			return errors.New("--repair needs the cluster, which --stream-only does not ask; give one of them")
		case o.Wait < 0:
			return fmt.Errorf("--wait %v: expected a time above 0, for example 2m", o.Wait)
		}
		cfg, err := config.Load(*path)
		if err != nil {
			return err
		}
		o.Progress = cmd.ErrOrStderr()
		r, err := inspect.Verify(cmd.Context(), cfg, o)
		if err != nil {
			return err
		}
		if output.isJSON() {
			err = inspect.WriteJSON(cmd.OutOrStdout(), r)
		} else {
			err = r.WriteText(cmd.OutOrStdout())
		}
		return errors.Join(err, inspect.VerifyError(r))
	}
	return cmd
}
