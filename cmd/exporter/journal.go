package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/inspect"
)

func journalCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "journal",
		Short: "Look into the journal of a stopped exporter",
		RunE: func(*cobra.Command, []string) error {
			return errors.New("a subcommand is missing: stat or dump")
		},
	}
	onlyCommands(cmd)
	cmd.AddCommand(journalStatCommand(), journalDumpCommand())
	return cmd
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
