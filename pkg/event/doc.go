// Package event is the product: the typed change of one Kubernetes object, its identity, and nothing else.
//
// A [Change] is made by pkg/deltas, stored by internal/journal, moved by internal/delivery and written for consumers by
// pkg/format. It is a plain value: this package has no clock, no network, no disk and no logging, so that the same
// observation always gives the same change with the same ID (invariant I4 of docs/delivery.md).
package event
