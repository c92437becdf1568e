package main

import (
	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

func journalCommand() *cobra.Command {
	return groupCommand("journal", "Look into the journal of a stopped exporter", "", journalStatCommand(), journalDumpCommand())
}

// journalLocation is where a journal is, by its configuration or by itself.
type journalLocation struct{ config, dir string }

// addJournalLocationFlags adds --config and --dir to a command that works on a journal or asks its exporter.
func addJournalLocationFlags(cmd *cobra.Command) *journalLocation {
	p := &journalLocation{}
	cmd.Flags().StringVarP(&p.config, "config", "c", "", "configuration file (YAML) that names the journal")
	cmd.Flags().StringVar(&p.dir, "dir", "", "directory of the journal")
	cmd.MarkFlagsOneRequired("config", "dir")
	cmd.MarkFlagsMutuallyExclusive("config", "dir")
	return p
}

// resolveDirAndSinks returns the directory of the journal, and the names of the configured sinks; those are nil with --dir.
func (p *journalLocation) resolveDirAndSinks() (dir string, sinks []string, err error) {
	dir, bounds, err := p.resolveBounds()
	return dir, bounds.Sinks, err
}

// resolveBounds returns the directory of the journal and what the configuration has of it; nothing of that with --dir.
func (p *journalLocation) resolveBounds() (dir string, bounds inspect.JournalBounds, err error) {
	if p.config == "" {
		return p.dir, bounds, nil
	}
	cfg, err := config.LoadWithoutSinkFiles(p.config)
	if err != nil {
		return "", bounds, err
	}
	for _, s := range cfg.Sinks {
		bounds.Sinks = append(bounds.Sinks, s.Name)
	}
	bounds.MaxBytes, bounds.MaxDeadLetters = int64(cfg.Journal.MaxBytes), int64(cfg.Journal.MaxDeadLetters)
	return cfg.Journal.Dir, bounds, nil
}

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

func journalStatCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stat (--config FILE | --dir DIR)",
		Short: "Print how much the journal holds, its scopes and how far each sink got",
		Long: `Print how much the journal of a stopped exporter holds, its scopes (a resource
with its selectors) and how far each sink got.

Nothing is changed: a read-only volume or a copy will do. While an exporter runs
on the journal this ends with exit code 3; its status page has the same numbers.

With --config every configured sink is listed, and one that is not configured any
more is marked. A sink's backlog counts the changes above its cursor; some of them
may be acknowledged already, in lanes that are ahead.`,
		Args: cobra.NoArgs,
	}
	place := addJournalLocationFlags(cmd)
	output := outputFlag(cmd, "form: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, bounds, err := place.resolveBounds()
		if err != nil {
			return err
		}
		return inspect.WriteJournalStat(dir, bounds, output.isJSON(), cmd.OutOrStdout())
	}
	return cmd
}
