// Package form has the one coder of what is stored: in the journal, in the replicated state, and in the states of sinks. It
// knows no format.
package form
