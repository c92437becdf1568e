// Package event defines the typed change of one Kubernetes object and its identity.
//
// A [Change] is made by pkg/deltas, stored by internal/journal, delivered by internal/delivery and encoded for consumers by
// pkg/format. It is a plain value: this package has no clock, network, disk or logging, so the same observation always gives
// the same change with the same ID (invariant I4 of docs/delivery.md).
package event
