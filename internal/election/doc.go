// Package election says whose turn it is among several exporters, by a Lease of the API server, as client-go's leader
// election does.
//
// It decides who tries to work, and never who may: that is decided by the destinations, which a successor asks to refuse
// whoever came before. So a holder that cannot reach the API server goes on: while nobody else can be elected either, there
// is nobody to make room for.
package election
