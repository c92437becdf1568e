// Package app is the composition root: it makes the parts of the exporter from a configuration, connects them by plain
// functions, runs each as a task, stops them in a fixed order, and reports their status.
//
//   - app is the process: log, admin server, configuration file, election. It exists once.
//   - composition is everything that one configuration makes: journal, source, sinks. A changed file makes another one
//     (see docs/adr/0062-a-reload-is-a-restart-inside-the-process.md).
//   - terms runs one composition after the other. With a replicated state, a term begins on standby and ends when another
//     process takes over.
//   - sinkSet holds the sinks of a composition; a runner is one sink with the pipeline that feeds it.
//   - replica is the part of a composition that follows, takes over and writes the replicated state.
//
// The start order is documented at composition.startTasks, the stop order at composition.stopTasks and app.stopProcessTasks.
//
// Errors carry the exit code of the process, see package exit.
package app
