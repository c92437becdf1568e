// Package verify compares what a sink has delivered with the cluster, at exactly one version of it.
//
//	watermarks at the ends of the lanes ──▶ a position P for each scope
//	list of the cluster at P ──▶ the objects there are
//	lanes up to the copies of that watermark, folded by pkg/consumer ──▶ the objects a consumer has
//	comparison ──▶ what seems to differ ──▶ a second pass over the lanes, for those objects alone
//
// The first pass keeps identities and versions, and a hash of each body if bodies are compared. The second one reads the
// records of single objects whole: it confirms each difference, finds its first path, and decides whether a record that
// is older than one before it was repeated or is out of order.
//
// Nothing is written anywhere. [sinks.StoredReader] reads the lanes, and a function lists the cluster.
package verify
