// Command bench measures what a change costs: the exporter, the exporter most teams write (package baseline), and a client
// that copies watch frames (package floor), under the same loads, and fails when the exporter loses something or misses a
// bar.
//
//	bench [flags]        everything, in one run
//	bench -only costs    what changes cost under four loads, with the shares of a profile
//	bench replay|broker|floor|baseline|read [flags]   a part of it, in a process of its own; started by the run
//
// Then the exporter alone, with and without shaping, in turn: what default rules and filters add.
//
// A last part starts the exporter alone on many objects, and again, and compares with a client that reads the same and
// drops it.
//
// Each system runs alone, one after the other, against a replay server and a broker that are restarted: every part is
// a process. Once the initial sync is through, the changes begin; CPU time and peak memory are those that the kernel
// counts for the system's process. The records are read from the broker and compared only after the system has ended, so
// that the comparison costs it nothing.
package main
