package controlplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// AuditEntry is one request as the API server has seen it, at one stage: "ResponseStarted" for a watch that has begun,
// "ResponseComplete" for a request that has ended, or "Panic".
type AuditEntry struct {
	Verb       string // get, list, watch, create, update, patch, delete, …
	RequestURI string
	User       string
	UserAgent  string
	Group      string // API group, empty for the core group
	Resource   string // empty for a request that names no resource
	Namespace  string
	Name       string
	// Subresource is empty, or such as "status".
	Subresource string
	Code        int // HTTP status
	Stage       string
	Time        time.Time // when the stage was reached
}

const auditPolicy = `{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [{"level": "Metadata"}]
}
`

func (c *ControlPlane) writeAuditPolicy() error {
	return os.WriteFile(c.path("audit-policy.json"), []byte(auditPolicy), 0o644)
}

// auditArgs keep the log in one file: rotated parts would be lost to AuditEntries.
func (c *ControlPlane) auditArgs(name string) []string {
	return []string{
		"--audit-policy-file=" + c.path("audit-policy.json"),
		"--audit-log-path=" + c.auditLog(name),
		"--audit-log-maxsize=100000",
	}
}

func (c *ControlPlane) auditLog(name string) string { return c.path(name + ".audit.log") }

// AuditEntries returns all requests so far, in the order in which the first API server has logged them, over all its runs
// in this directory. An entry may appear a moment after the client has its answer, so wait for what you expect. The
// caller owns the result. Without an audit log (NoAudit) the result is empty.
func (c *ControlPlane) AuditEntries() ([]AuditEntry, error) {
	text, err := os.ReadFile(c.auditLog(firstAPIServer))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseAudit(text)
}

// parseAudit ignores what follows the last line's end: the API server may be writing it, or was killed doing so.
func parseAudit(text []byte) ([]AuditEntry, error) {
	var entries []AuditEntry
	for number := 1; ; number++ {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return entries, nil
		}
		text = rest
		entry, err := parseAuditLine(line)
		if err != nil {
			return nil, fmt.Errorf("audit log, line %d: %w", number, err)
		}
		entries = append(entries, entry)
	}
}

func parseAuditLine(line []byte) (AuditEntry, error) {
	var event struct {
		Verb, RequestURI, UserAgent, Stage string
		StageTimestamp                     time.Time
		User                               struct{ Username string }
		ObjectRef                          struct{ APIGroup, Resource, Subresource, Namespace, Name string }
		ResponseStatus                     struct{ Code int }
	}
	if err := json.Unmarshal(line, &event); err != nil {
		return AuditEntry{}, err
	}
	return AuditEntry{
		Verb:        event.Verb,
		RequestURI:  event.RequestURI,
		User:        event.User.Username,
		UserAgent:   event.UserAgent,
		Group:       event.ObjectRef.APIGroup,
		Resource:    event.ObjectRef.Resource,
		Namespace:   event.ObjectRef.Namespace,
		Name:        event.ObjectRef.Name,
		Subresource: event.ObjectRef.Subresource,
		Code:        event.ResponseStatus.Code,
		Stage:       event.Stage,
		Time:        event.StageTimestamp,
	}, nil
}
