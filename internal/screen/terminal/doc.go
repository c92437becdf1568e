// Package terminal keeps text that comes from a cluster or a destination from steering the terminal that shows it. [Writer]
// is what all commands write to; a command that colors its output writes to its Raw, and escapes what it is given.
package terminal
