// Command nats-server is the NATS server, unchanged, built from its Go module. It takes the flags and the
// configuration file of the original command.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "nats-server:", err)
		os.Exit(1)
	}
}

// run serves until the server stops; the server installs its own signal handlers.
func run(args []string) error {
	flags := flag.NewFlagSet("nats-server", flag.ExitOnError)
	options, err := server.ConfigureOptions(flags, args, server.PrintServerAndExit, flags.Usage, server.PrintTLSHelpAndDie)
	if err != nil {
		return err
	}
	if options.CheckConfig {
		fmt.Fprintf(os.Stderr, "nats-server: configuration file %s is valid\n", options.ConfigFile)
		return nil
	}
	s, err := server.NewServer(options)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		return err
	}
	s.WaitForShutdown()
	return nil
}
