package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/internal/sql"
)

func sqlCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sql --for DATABASE",
		Short: "Print tables and views that answer questions from records of the format json",
		Long: `Print tables and views that answer questions from records of the format json.

changes      every record once
history      each state of each object, from when to when
state_at(t)  the objects that existed at a time
who_changed  each change with its author

They follow the rules of docs/consuming.md: authors, replays and gaps change no
object, and what is missing in a snapshot does not exist.`,
		Args: cobra.NoArgs,
	}
	dialect := cmd.Flags().String("for", "", "the database: "+strings.Join(sql.Dialects, ", "))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, err := sql.Print(*dialect)
		return printText(cmd, text, err)
	}
	return cmd
}
