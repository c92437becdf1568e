package corpus

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// marshalEvent makes the JSON of a core/v1 Event about a Pod, with tokens for what differs between Events.
func marshalEvent(s *stream) ([]byte, error) {
	app := applications[s.below(len(applications))]
	pod := fmt.Sprintf("%s-%s-%s", app, s.appendHex(nil, 10), s.appendHex(nil, 5))
	e := &corev1.Event{
		TypeMeta: metav1.TypeMeta{Kind: "Event", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: tokens[fieldName], Namespace: tokens[fieldNamespace], UID: types.UID(tokens[fieldUID]),
			ResourceVersion: tokens[fieldRV], CreationTimestamp: created,
		},
		InvolvedObject: corev1.ObjectReference{
			Kind: "Pod", Namespace: tokens[fieldNamespace], Name: pod, UID: types.UID(s.appendUID(nil)),
			APIVersion: "v1", ResourceVersion: fmt.Sprint(firstRV - s.below(1e6)), FieldPath: "spec.containers{" + app + "}",
		},
		Reason:         "Unhealthy",
		Message:        fmt.Sprintf("Readiness probe failed: HTTP probe failed with statuscode: 50%d", s.below(10)),
		Source:         corev1.EventSource{Component: "kubelet", Host: tokens[fieldNode]},
		FirstTimestamp: created, LastTimestamp: now, Count: count, Type: corev1.EventTypeWarning,
		ReportingController: "kubelet",
	}
	if err := addManagedFields(e, "kubelet", ""); err != nil {
		return nil, err
	}
	return json.Marshal(e)
}
