// Package exit attaches exit codes of the process to errors. The code travels with the error to main, which
// exits with it.
package exit
