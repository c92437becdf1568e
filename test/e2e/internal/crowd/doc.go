// Package crowd is an API server with one resource, ConfigMaps, of any number, for proofs of memory: it makes each object
// when it is asked for, so that a million of them cost nothing here and no etcd has to be filled.
//
// It speaks as much of the Kubernetes API as discovery and a list and watch of one resource use: pages with continue tokens,
// streaming lists (KEP-3157), watches with bookmarks, and 410 for a position from before [Server.ChangeAll]. It knows no
// users and no selectors, and refuses what it does not know.
package crowd
