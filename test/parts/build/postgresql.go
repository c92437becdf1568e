package build

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// postgreSQLPackages are those of the server and of psql, and of what they need beside the libraries of a small Debian.
var postgreSQLPackages = []string{"postgresql-15", "postgresql-client-15", "libpq5", "libldap-2.5-0", "libsasl2-2"}

// PostgreSQL returns the directory of PostgreSQL's programs and the environment variables that they and clients of libpq
// need: that which the system has, else Debian's.
func PostgreSQL(ctx context.Context) (programs string, env []string, err error) {
	if programs, err := newest("/usr/lib/postgresql/*/bin"); err == nil { // Debian keeps the server's off PATH
		return programs, nil, nil
	}
	if program, err := exec.LookPath("postgres"); err == nil {
		return filepath.Dir(program), nil, nil
	}
	dir, err := debian{title: "postgresql", takes: "about 10 seconds, 25 MB", packages: postgreSQLPackages}.provide(ctx)
	if err != nil {
		return "", nil, err
	}
	libraries, err := newest(filepath.Join(dir, "usr", "lib", "*-linux-gnu"))
	if err != nil {
		return "", nil, err
	}
	programs, err = newest(filepath.Join(dir, "usr", "lib", "postgresql", "*", "bin"))
	return programs, []string{"LD_LIBRARY_PATH=" + libraries}, err
}

// newest is the last path that a pattern matches.
func newest(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err == nil && len(found) == 0 {
		err = &os.PathError{Op: "find", Path: pattern, Err: os.ErrNotExist}
	}
	if err != nil {
		return "", err
	}
	return slices.Max(found), nil
}
