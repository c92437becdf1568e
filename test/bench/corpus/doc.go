// Package corpus makes up a cluster and its history: the objects that exist at the start, and the changes that follow,
// each as the watch frame a kube-apiserver would send for it.
//
// A corpus is a pure function of its [Options]. The process that serves it and the process that checks what arrived
// make the same one each for themselves and need to exchange nothing but the options. Making one builds the plan only;
// frames are rendered one at a time, from templates, at the cost of a copy.
//
// The shapes are those of real objects. Pods are marshalled by the Kubernetes API types in the field order of a
// kube-apiserver, with managedFields derived from their own fields as server-side apply tracks them; a ReplicaSet's Pods
// share everything but what is a Pod's own. Events carry the managedFields of the component that wrote them.
//
// It is not a simulation: an update moves the status as a kubelet would, but nothing schedules or restarts anything.
package corpus
