package corpus

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// addManagedFields derives the writer of each field: owner wrote everything but the status, statusOwner ("" for none) the
// status, by its subresource and last.
func addManagedFields(o metav1.Object, owner, statusOwner string) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var whole map[string]any
	if err := json.Unmarshal(text, &whole); err != nil {
		return err
	}
	status, hasStatus := whole["status"].(map[string]any)
	delete(whole, "status")
	delete(whole, "kind")
	delete(whole, "apiVersion")
	if meta, ok := whole["metadata"].(map[string]any); ok {
		keepWritten(meta)
		if len(meta) == 0 {
			delete(whole, "metadata")
		}
	}
	main, err := managedEntry(owner, "", created, whole)
	if err != nil {
		return err
	}
	entries := []metav1.ManagedFieldsEntry{main}
	if statusOwner == "" || !hasStatus {
		entries[0].Time = &now // an object without a status is updated by its owner
	} else {
		kubelet, err := managedEntry(statusOwner, "status", now, map[string]any{"status": status})
		if err != nil {
			return err
		}
		entries = append(entries, kubelet)
	}
	o.SetManagedFields(entries)
	return nil
}

// keepWritten removes fields that the API server sets itself and does not track.
func keepWritten(meta map[string]any) {
	for _, name := range []string{"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"} {
		delete(meta, name)
	}
}

func managedEntry(manager, subresource string, at metav1.Time, content map[string]any) (metav1.ManagedFieldsEntry, error) {
	set, err := json.Marshal(fieldSet(content))
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &at,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(set)), Subresource: subresource,
	}, err
}

// atomic names the fields that server-side apply tracks as a whole (listType=atomic, structType=atomic).
var atomic = map[string]bool{
	"containerStatuses": true, "tolerations": true, "args": true, "items": true, "sources": true, "fieldRef": true,
	"secretKeyRef": true,
}

// listKeys are the keys of the lists that are maps (listType=map); "name" by default.
var listKeys = map[string]string{
	"ownerReferences": "uid", "volumeMounts": "mountPath", "hostIPs": "ip", "podIPs": "ip", "conditions": "type",
	"ports": "containerPort",
}

// fieldSet writes the fields of content in the FieldsV1 form: "f:" before a name, "k:" before the key of a list's item,
// "." for the thing itself.
func fieldSet(content map[string]any) map[string]any {
	set := map[string]any{}
	for name, value := range content {
		switch v := value.(type) {
		case map[string]any:
			if atomic[name] {
				set["f:"+name] = map[string]any{}
				continue
			}
			inner := fieldSet(v)
			if name != "metadata" && name != "spec" && name != "status" {
				inner["."] = map[string]any{}
			}
			set["f:"+name] = inner
		case []any:
			set["f:"+name] = listSet(name, v)
		default:
			set["f:"+name] = map[string]any{}
		}
	}
	return set
}

func listSet(name string, items []any) map[string]any {
	if atomic[name] {
		return map[string]any{}
	}
	key, found := listKeys[name]
	if !found {
		key = "name"
	}
	set := map[string]any{".": map[string]any{}}
	for _, item := range items {
		m, ok := item.(map[string]any)
		if !ok {
			return map[string]any{} // a list of plain values
		}
		text, err := json.Marshal(map[string]any{key: m[key]})
		if err != nil { // not reached: it came out of JSON
			return set
		}
		inner := fieldSet(m)
		inner["."] = map[string]any{}
		set["k:"+string(text)] = inner
	}
	return set
}
