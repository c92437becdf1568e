// Package filter evaluates the expressions of rules, routes and viewers, in CEL, on changes: what they may ask for, how much
// they may cost, and which of them can never do what they were written for. Bodies are decoded when an expression first asks
// for them.
package filter
