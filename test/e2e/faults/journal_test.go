package faults

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

func (c *fixture) badReload() func() {
	c.start()
	c.must(c.exporter.Configure(func(s *exporter.Settings) { s.Sinks = []mapping{{"name": "nowhere"}} }))
	return func() { c.must(c.exporter.Configure(func(s *exporter.Settings) { s.Sinks = nil })) }
}

// ownDisk runs the exporter with a disk of its own in the place of the journal's directory, which it alone sees. more are
// commands of a shell before it starts. It needs a right that not every environment gives.
func (c *fixture) ownDisk(more string) {
	c.t.Helper()
	dir := c.settings.JournalDir()
	c.must(os.MkdirAll(dir, 0o700))
	unshare := []string{"unshare", "--mount"}
	if os.Getuid() != 0 {
		unshare = append(unshare, "--map-root-user")
	}
	if out, err := exec.Command(unshare[0], append(unshare[1:], "mount", "-t", "tmpfs", "tmpfs", dir)...).CombinedOutput(); err != nil {
		require.Skip(c.t, fmt.Sprintf("a disk of its own cannot be mounted (%v: %s): allow unprivileged user namespaces, or run as root", err, out))
	}
	c.settings.Wrap = slices.Concat(unshare, []string{"sh", "-c", `mount -t tmpfs -o size=192m tmpfs "$1"; ` + more + ` shift && exec "$@"`, "sh", dir})
}

// diskFull has another process fill the disk.
func (c *fixture) diskFull() func() {
	c.ownDisk("")
	c.start()
	ballast := filepath.Join("/proc", fmt.Sprint(c.exporter.Process().Pid()), "root", c.settings.JournalDir(), "ballast")
	f, err := os.OpenFile(ballast, os.O_CREATE|os.O_WRONLY, 0o600)
	c.must(err)
	defer f.Close()
	for block := make([]byte, 1<<20); err == nil; {
		_, err = f.Write(block)
	}
	c.background(func(ctx context.Context) { // what is written finds that there is no room
		for i := 0; ctx.Err() == nil; i++ {
			_ = c.cluster.Create(ctx, noise(20_000), c.name, fmt.Sprintf("meanwhile-%d", i))
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	return func() { c.must(os.Remove(ballast)) }
}

// readOnly starts on a disk that became read-only, as Linux makes one that fails.
func (c *fixture) readOnly() func() {
	c.alone()
	c.ownDisk(`mount -o remount,ro tmpfs "$1";`)
	c.launch()
	return nil
}

// journalFull has a sink that takes nothing for longer than the journal can hold.
func (c *fixture) journalFull() func() {
	var away atomic.Bool
	server := c.receiver(func(string) int {
		if away.Load() {
			return http.StatusServiceUnavailable
		}
		return http.StatusNoContent
	})
	server.Start()
	c.settings.Journal = mapping{"maxBytes": "16Mi"}
	c.sink("webhook", mapping{"url": server.URL}, cloudEvents)
	c.start()
	away.Store(true)
	for i := range 44 {
		c.create(noise(500_000), fmt.Sprintf("large-%d", i))
	}
	return func() { away.Store(false) }
}

// journalBroken writes over what is stored while the exporter is away.
func (c *fixture) journalBroken() func() {
	c.start()
	c.create(workload.ConfigMaps, "before")
	c.must(c.exporter.Kill())
	c.must(filepath.WalkDir(c.settings.JournalDir(), func(path string, entry os.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(entry.Name(), "MANIFEST") {
			return err
		}
		return os.WriteFile(path, []byte("not what was written here"), 0o600)
	}))
	c.must(c.exporter.Start(c.t.Context()))
	return nil
}

// auditSilent has an exporter that waits for audit events without a sender.
func (c *fixture) auditSilent() func() {
	c.audit()
	c.start()
	c.create(workload.ConfigMaps, "by-somebody")
	return nil
}

// audit configures where audit events would come.
func (c *fixture) audit() {
	c.t.Helper()
	cert, key := c.authority.Issue(c.t)
	free, err := ports.Free(1)
	c.must(err)
	c.settings.Audit = mapping{
		"webhook": mapping{
			"listen": ports.Address(free[0]), "cert": c.write("audit.pem", string(cert)), "key": c.write("audit.key", string(key)),
			"clientCA": filepath.Join(c.dir, "ca.pem"), "clients": []string{"kube-apiserver"},
		},
		"settle": "1s", "window": "2s",
	}
}
