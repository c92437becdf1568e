// Package filter evaluates the CEL expressions of rules, routes and viewers on changes. It defines the available variables
// and the cost limit, and rejects expressions that can never have the intended effect. Bodies are decoded only when an
// expression uses them.
package filter
