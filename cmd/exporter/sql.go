package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/sql"
)

func sqlCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sql --for DATABASE",
		Short: "Print tables and views that answer questions from records of the format json, or a history",
		Long: `Print tables and views that answer questions from records of the format json, or
from a history: the folder of that name in the working directory.

changes      every record once
history      each state of each object, from when to when
state_at(t)  the objects that existed at a time; not from a history
who_changed  each change with its author
differences  each changed value; only from a history`,
		Args: cobra.NoArgs,
	}
	dialect := cmd.Flags().String("for", "", "the database: "+strings.Join(sql.Dialects, ", "))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, err := sql.Print(*dialect)
		return printText(cmd, text, err)
	}
	return cmd
}
