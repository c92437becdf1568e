package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// debian is a program that is fetched as Debian packages, as apt's own settings define, and unpacked into the cache:
// nothing is installed, and no rights are needed.
type debian struct {
	title    string
	takes    string
	packages []string
}

// provide returns the directory below which the packages are unpacked, and fetches them first if the cache does not have
// them.
func (d debian) provide(ctx context.Context) (string, error) {
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return "", fmt.Errorf("neither %s nor apt-get to fetch it is on PATH; install %s", d.title, d.title)
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	return artifact{
		title: d.title,
		takes: d.takes,
		path:  filepath.Join(cache, d.title, "unpacked"),
		make:  func(ctx context.Context, temporary, log string) error { return d.unpack(ctx, apt, temporary, log) },
	}.provide(ctx)
}

// unpack has apt keep its lists below dir, because the system's may be missing, and unpacks what it fetches there.
func (d debian) unpack(ctx context.Context, apt, dir, log string) error {
	lists, archives := filepath.Join(dir, "apt", "lists"), filepath.Join(dir, "apt", "archives")
	for _, d := range []string{lists, archives} {
		if err := os.MkdirAll(filepath.Join(d, "partial"), 0o755); err != nil {
			return err
		}
	}
	own := []string{
		"-q", "-o", "Dir::State::lists=" + lists, "-o", "Dir::Cache=" + filepath.Dir(lists), "-o", "APT::Sandbox::User=",
	}
	if err := run(ctx, "apt-get", apt, append(own, "update"), dir, nil, log); err != nil {
		return err
	}
	if err := run(ctx, "apt-get", apt, append(append(own, "download"), d.packages...), archives, nil, log); err != nil {
		return err
	}
	fetched, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	unpacker, err := exec.LookPath("dpkg-deb")
	if err != nil {
		return err
	}
	for _, archive := range fetched {
		if err := run(ctx, "dpkg-deb", unpacker, []string{"--extract", archive, dir}, dir, nil, log); err != nil {
			return err
		}
	}
	return os.RemoveAll(filepath.Dir(lists))
}
