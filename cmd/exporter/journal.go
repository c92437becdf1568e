package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
)

func journalCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "journal",
		Short: "Look into the journal of a stopped exporter",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("say what to do with the journal: stat or dump")
		},
	}
	cmd.AddCommand(journalStatCommand(), journalDumpCommand())
	return cmd
}

// journalPlace is where a journal is, by its configuration or by itself.
type journalPlace struct{ config, dir string }

// journalPlaceFlags adds --config and --dir to a command that works on the journal of a stopped exporter.
func journalPlaceFlags(cmd *cobra.Command) *journalPlace {
	p := &journalPlace{}
	cmd.Flags().StringVarP(&p.config, "config", "c", "", "configuration file (YAML) that names the journal")
	cmd.Flags().StringVar(&p.dir, "dir", "", "directory of the journal")
	cmd.MarkFlagsOneRequired("config", "dir")
	cmd.MarkFlagsMutuallyExclusive("config", "dir")
	return p
}

// load returns the directory of the journal, and the names of the configured sinks; those are nil with --dir.
func (p *journalPlace) load() (dir string, sinks []string, err error) {
	if p.config == "" {
		return p.dir, nil, nil
	}
	cfg, err := config.Load(p.config)
	if err != nil {
		return "", nil, err
	}
	for _, s := range cfg.Sinks {
		sinks = append(sinks, s.Name)
	}
	return cfg.Journal.Dir, sinks, nil
}

// withJournal opens the journal for reading, lets read write what it finds, and closes it.
func withJournal(dir string, out io.Writer, read func(*journal.Offline, io.Writer) error) error {
	j, err := journal.OpenOffline(dir)
	if err != nil {
		return journalError(err)
	}
	w := bufio.NewWriterSize(out, 64<<10)
	err = errors.Join(read(j, w), w.Flush(), j.Close())
	var usage *usageError
	if err == nil || errors.As(err, &usage) {
		return err
	}
	return &runtimeError{err}
}

// journalError says what an error at opening a journal is to a script, and where somebody else has the journal, the remedy.
func journalError(err error) error {
	switch {
	case errors.Is(err, journal.ErrLocked):
		return &environmentError{fmt.Errorf("%w; stop the exporter first, or read the numbers of a running one from its status page (admin.listen)", err)}
	case errors.Is(err, journal.ErrBroken):
		return &runtimeError{err}
	}
	return &environmentError{err}
}

// usageError says that the arguments name what is not in the journal.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

// checkOutput refuses a value of --output that is not known.
func checkOutput(format string) error {
	if format != "text" && format != "json" {
		return &usageError{fmt.Sprintf("--output %q is neither text nor json", format)}
	}
	return nil
}
