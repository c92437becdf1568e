// Package controlplane runs a real Kubernetes control plane for tests: etcd and kube-apiserver, as processes of their
// own on the loopback interface.
//
// There is no kubelet, scheduler or controller: objects stay as they are written, pods are never run, and a deleted
// namespace stays Terminating, since its controller is missing. Authorization is RBAC, so least privilege can be
// tested; the admission plugin ServiceAccount is off, because without controllers no service account exists that a
// pod could have.
//
// etcd never forgets: the API server's periodic compaction is off and etcd's own is not on, so a watch of etcd from
// revision 1 is the truth to compare with. A test that needs 410 Gone compacts by itself, through EtcdEndpoint. etcd
// does not fsync, which makes it fast and costs nothing here: a killed process loses no write that the kernel has.
//
// Programs come from KUBEBUILDER_ASSETS where that is set, else from package build.
package controlplane
