// Package leaks fails a package with tests that leave goroutines behind.
//
// It looks as goleak does, but goes on looking for a minute where goleak gives up after half a second: a library ends its
// goroutines some time after it was closed, and on a machine that starves that may be seconds. Where nothing is left, it
// costs nothing.
package leaks
