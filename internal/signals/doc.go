// Package signals has the requests that an operator makes of a running exporter: pause and resume a sink or a rule, emit the
// existing objects again and cancel that, retry and discard dead letters. Each is stored before it is answered, has an ID,
// and an end that is kept for a while; see docs/signals.md.
package signals
