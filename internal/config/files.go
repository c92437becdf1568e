package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// maxCredentialBytes bounds a file that a sink reads, in bytes; bundles of certificates are the largest.
const maxCredentialBytes = 4 << 20

// validateFiles looks at every file that sinks are going to read or write, so that nothing is created before it is known
// that all of them are there. It never shows what they hold.
func (d *decoder) validateFiles(c *Config) {
	if c.Cluster.Kubeconfig == "" {
		d.validateContext(c.Cluster)
	}
	for i, s := range c.Sinks {
		at := fmt.Sprintf("sinks[%d]", i)
		for _, f := range s.credentialFiles() {
			d.validateCredentialFile(joinPath(at, f.Key), f)
		}
		if s.Stdout != nil && s.Stdout.Path != "" {
			d.validateOutputFile(at+".stdout.path", s.Stdout.Path, c.Journal.Dir)
		}
	}
	for _, f := range c.Audit.credentialFiles() {
		d.validateCredentialFile(f.Key, f)
	}
	if info, err := os.Stat(c.Journal.Dir); err == nil && !info.IsDir() {
		d.addProblem("journal.dir", Problem{Message: "not a directory", Found: c.Journal.Dir, Expected: "a directory, or a path where one can be created"})
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

func (d *decoder) validateCredentialFile(path string, f sinks.File) {
	content, err := readLimited(f.Path, maxCredentialBytes)
	switch {
	case err != nil:
		d.addProblem(path, Problem{Message: err.Error()})
	case len(bytes.TrimSpace(content)) == 0:
		d.addProblem(path, Problem{Message: "file " + f.Path + " is empty"})
	case f.PEM && !bytes.Contains(content, []byte("-----BEGIN ")):
		d.addProblem(path, Problem{Message: "file " + f.Path + " holds no PEM", Expected: `text with a line such as "-----BEGIN CERTIFICATE-----"`})
	}
}

// validateOutputFile sees to it that lines can be appended to a file, in a directory that exists, or that the journal is going
// to create. Terminals and /dev/null are for trying things out.
func (d *decoder) validateOutputFile(path, name, journal string) {
	info, err := os.Stat(name)
	switch {
	case err == nil && !info.Mode().IsRegular() && info.Mode()&os.ModeCharDevice == 0:
		what := "a directory"
		if !info.IsDir() {
			what = fileKind(info.Mode())
		}
		d.addProblem(path, Problem{Message: "no file that lines can be appended to", Found: what, Expected: "a regular file, or a path where one can be created"})
	case errors.Is(err, os.ErrNotExist):
		if parent, err := os.Stat(filepath.Dir(name)); (err != nil || !parent.IsDir()) && !isWithin(resolvePath(journal), resolvePath(filepath.Dir(name))) {
			d.addProblem(path, Problem{Message: "its directory does not exist", Found: filepath.Dir(name), Expected: "a directory that exists"})
		}
	case err != nil:
		d.addProblem(path, Problem{Message: fmt.Sprintf("cannot look at file %s: %v", name, fileErrorCause(err))})
	}
}

// isSameFile says whether two paths lead to one file, as far as can be known before it exists.
func isSameFile(a, b string) bool {
	first, errA := os.Stat(a)
	second, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(first, second) || resolvePath(a) == resolvePath(b)
}

// resolvePath is a path as the kernel sees it: absolute, links followed as far as they exist.
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
