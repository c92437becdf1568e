package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// maxCredentialBytes bounds the size of a file that a sink reads; certificate bundles are the largest ones.
const maxCredentialBytes = 4 << 20

// validateFiles checks every file that sinks read or write, so that nothing is created at a start that is going to fail. It
// never quotes the content of a file.
func validateFiles(rep *reporter, c *Config) {
	if c.Cluster.Kubeconfig == "" {
		validateContext(rep, c.Cluster)
	}
	for i, s := range c.Sinks {
		at := fmt.Sprintf("sinks[%d]", i)
		for _, f := range s.credentialFiles() {
			validateCredentialFile(rep, joinPath(at, f.Key), f)
		}
		if s.Stdout != nil && s.Stdout.Path != "" {
			validateOutputFile(rep, at+".stdout.path", s.Stdout.Path, c.Journal.Dir)
		}
	}
	for _, f := range c.Audit.credentialFiles() {
		validateCredentialFile(rep, f.Key, f)
	}
	validateTokenFile(rep, c.Admin.Signals.TokenFile)
	if info, err := os.Stat(c.Journal.Dir); err == nil && !info.IsDir() {
		rep.addProblem("journal.dir", Problem{Message: "not a directory", Found: c.Journal.Dir, Expected: "a directory, or a path where one can be created"})
	}
}

func (s Sink) credentialFiles() []sinks.File {
	switch {
	case s.Kafka != nil:
		return s.Kafka.Files()
	case s.NATS != nil:
		return s.NATS.Files()
	case s.Webhook != nil:
		return s.Webhook.Files()
	}
	return nil
}

func validateCredentialFile(rep *reporter, path string, f sinks.File) {
	content, err := readLimited(f.Path, maxCredentialBytes)
	switch {
	case err != nil:
		rep.addProblem(path, Problem{Message: err.Error()})
	case len(bytes.TrimSpace(content)) == 0:
		rep.addProblem(path, Problem{Message: "file " + f.Path + " is empty"})
	case f.PEM && !bytes.Contains(content, []byte("-----BEGIN ")):
		rep.addProblem(path, Problem{Message: "file " + f.Path + " holds no PEM", Expected: `text with a line such as "-----BEGIN CERTIFICATE-----"`})
	}
}

// validateOutputFile checks that lines can be appended to a file: it is in a directory that exists, or that the journal is
// going to create. Character devices are allowed, for terminals and /dev/null.
func validateOutputFile(rep *reporter, path, name, journal string) {
	info, err := os.Stat(name)
	switch {
	case err == nil && !info.Mode().IsRegular() && info.Mode()&os.ModeCharDevice == 0:
		found := "a directory"
		if !info.IsDir() {
			found = fileKind(info.Mode())
		}
		rep.addProblem(path, Problem{Message: "not a file that lines can be appended to", Found: found, Expected: "a regular file, or a path where one can be created"})
	case errors.Is(err, os.ErrNotExist):
		if parent, err := os.Stat(filepath.Dir(name)); (err != nil || !parent.IsDir()) && !isWithin(resolvePath(journal), resolvePath(filepath.Dir(name))) {
			rep.addProblem(path, Problem{Message: "its directory does not exist", Found: filepath.Dir(name), Expected: "a directory that exists"})
		}
	case err != nil:
		rep.addProblem(path, Problem{Message: fmt.Sprintf("cannot access file %s: %v", name, fileErrorCause(err))})
	}
}

// isSameFile reports whether two paths lead to one file. Files that do not exist are compared by their resolved paths.
func isSameFile(a, b string) bool {
	first, errA := os.Stat(a)
	second, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(first, second) || resolvePath(a) == resolvePath(b)
}

// resolvePath returns the absolute path, with symbolic links resolved as far as they exist; "" is standard output.
func resolvePath(path string) string {
	if path == "" {
		path = "/dev/stdout"
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	return path
}
