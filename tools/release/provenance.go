package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// statement is an in-toto statement with the provenance of SLSA 1.0 as its predicate (slsa.dev/spec/v1.0/provenance). It has
// no times, so that equal builds have equal ones. It is not signed by itself: the signature of the checksums covers it.
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     predicate `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

type predicate struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string            `json:"buildType"`
	ExternalParameters   map[string]string `json:"externalParameters"`
	ResolvedDependencies []dependency      `json:"resolvedDependencies"`
}

type dependency struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest,omitempty"`
}

type runDetails struct {
	Builder map[string]string `json:"builder"`
}

// sourceURI names where the sources are kept.
const sourceURI = "git+https://github.com/kubecdc/kubecdc"

// sourceCommit returns the commit of the sources, and whether they differ from it; an error outside of a checkout.
func (b builder) sourceCommit(ctx context.Context) (commit string, modified bool, err error) {
	head := exec.CommandContext(ctx, "git", "rev-parse", "HEAD")
	head.Dir = b.source
	text, err := head.Output()
	if err != nil {
		return "", false, err
	}
	status := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no")
	status.Dir = b.source
	changes, err := status.Output()
	return strings.TrimSpace(string(text)), len(changes) > 0, err
}

// writeProvenance writes from what the files of a release were built. Outside of a checkout the commit is not known.
func (b builder) writeProvenance(ctx context.Context, out string, info *debug.BuildInfo, names []string) error {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		s.Subject = append(s.Subject, subject{name, map[string]string{"sha256": hex.EncodeToString(sum[:])}})
	}
	parameters := map[string]string{"version": b.version, "command": "make release"}
	source := dependency{URI: sourceURI}
	if commit, modified, err := b.sourceCommit(ctx); err == nil {
		source.Digest = map[string]string{"gitCommit": commit}
		parameters["modified"] = strconv.FormatBool(modified)
	}
	s.Predicate = predicate{
		buildDefinition{sourceURI + "/tools/release", parameters, []dependency{source, {URI: "pkg:golang/std@" + info.GoVersion}}},
		runDetails{map[string]string{"id": "https://github.com/kubecdc/kubecdc/blob/main/Makefile"}},
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "provenance.intoto.json"), append(text, '\n'), 0o644)
}
