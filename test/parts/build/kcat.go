package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Kcat returns the path of kcat, the Kafka reader on librdkafka, and the directory of its shared libraries, "" where they
// are the system's. One that is on PATH is used. Else it is fetched as Debian packages, from where apt's own settings say,
// and unpacked into the cache: nothing is installed, and no rights are needed.
func Kcat(ctx context.Context) (program, libraries string, err error) {
	if program, err := exec.LookPath("kcat"); err == nil {
		return program, "", nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return "", "", errors.New("neither kcat nor apt-get to fetch it is on PATH; install kcat")
	}
	cache, err := CacheDir()
	if err != nil {
		return "", "", err
	}
	dir, err := artifact{
		title: "kcat",
		takes: "about 10 seconds, 12 MB",
		path:  filepath.Join(cache, "kcat", "unpacked"),
		make:  func(ctx context.Context, temporary, log string) error { return unpackKcat(ctx, apt, temporary, log) },
	}.provide(ctx)
	if err != nil {
		return "", "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "usr", "lib", "*-linux-gnu*"))
	if err != nil {
		return "", "", err
	}
	if len(found) != 1 {
		return "", "", fmt.Errorf("the libraries of kcat are in one of %q; delete %s and try again", found, dir)
	}
	return filepath.Join(dir, "usr", "bin", "kcat"), found[0], nil
}

// unpackKcat has apt keep its lists below dir, because the system's may be missing, and unpacks what it fetches there.
func unpackKcat(ctx context.Context, apt, dir, log string) error {
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
	packages := []string{"download", "kcat", "librdkafka1", "libyajl2"}
	if err := run(ctx, "apt-get", apt, append(own, packages...), archives, nil, log); err != nil {
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
