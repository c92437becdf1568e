// Package replay is an API server that plays a corpus: it lists and watches like a kube-apiserver, from frames that were
// serialised before the first client came, so that what is measured is the client.
//
// It speaks HTTPS with HTTP/2 and a certificate of its own, and as much of the Kubernetes API as discovery, a Reflector
// or an informer of Pods and Events use: lists, paged or whole, by resourceVersion; watches from a resourceVersion, with
// bookmarks; streaming lists (KEP-3157) with the bookmark that ends the initial events; 410 and 504 where a
// resourceVersion is too old or too large. Selectors are refused, not ignored,
// but for the one of a name that nothing has.
//
// There are two moments only. Until [Control.Start] the objects at the start exist and nothing changes. From then on all
// changes have happened: a watch gets those behind its position as fast as it reads, or at a rate, a list gets the state at
// the end.
// A client that must list again in the middle therefore still sees a history that is possible.
//
// It never compresses, as a client in the same cluster would ask for it, and knows no users. Nothing is written.
package replay
