// Package app is the composition root: it makes the parts of the exporter from a configuration, connects them by plain
// functions, runs each as a task, stops them in one stated order (see app.go), and says how they are.
//
// Its errors carry the exit code of the process, see package exit.
package app
