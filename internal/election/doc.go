// Package election chooses one of several exporters by a Lease of the API server, as client-go's leader election does.
//
// It decides which exporter tries to be active, and never which one may publish: the destinations decide that, because a
// successor fences its predecessors there. Therefore a holder that cannot reach the API server continues: no other
// candidate can be elected in the meantime either.
package election
