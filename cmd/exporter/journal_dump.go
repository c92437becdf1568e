package main

import (
	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/inspect"
)

func journalDumpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump (--config FILE | --dir DIR)",
		Short: "Print the changes in the journal as JSON lines, with the bodies of the objects",
		Long: `Print the changes in the journal of a stopped exporter, one JSON object a line:

  {"offset":57,"change":{"id":"...","type":"updated",...}}

"change" is the native format, whatever format the sinks are configured for.

The bodies of objects are printed as they are stored. Secrets are redacted by the
rules; under "redact: none" they are plain, and so are passwords in ConfigMaps and
environment variables that no rule redacts: treat the output like the journal itself.

Nothing is changed: a read-only volume or a copy will do. While an exporter runs
on the journal this ends with exit code 3.`,
		Example: `  exporter journal dump --dir /var/lib/kubecdc --resource deployments.apps --limit 10
  exporter journal dump --config config.yaml --from 900 | jq -r '[.offset, .change.type, .change.name] | @tsv'`,
		Args: cobra.NoArgs,
	}
	place := addJournalLocationFlags(cmd)
	var o inspect.DumpOptions
	cmd.Flags().Uint64Var(&o.From, "from", 0, "first offset; 0: the oldest there is")
	cmd.Flags().Uint64Var(&o.To, "to", 0, "last offset; 0: the newest there is")
	cmd.Flags().Uint64Var(&o.Limit, "limit", 0, "print at most so many changes; 0: all")
	cmd.Flags().StringSliceVar(&o.Resources, "resource", nil, `only this resource, as kubectl writes it: "pods", "deployments.apps"; may be repeated`)
	completeFlag(cmd, "resource", servedResources(clusterOfConfig))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Validate(); err != nil {
			return err
		}
		dir, _, err := place.resolveDirAndSinks()
		if err != nil {
			return err
		}
		return inspect.DumpChanges(dir, o, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}
