// Package allocations holds no code: its test counts what a change allocates on its way from a watch to a sink.
package allocations
