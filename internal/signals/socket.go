package signals

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// socketName is the name of the socket in the journal's directory.
const socketName = "signal.sock"

// maxSocketPath is how many bytes the path of a unix socket may have.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// SocketPath returns the path of the socket of an exporter with its journal in a directory. The error is that it is too
// long.
func SocketPath(dir string) (string, error) {
	path := filepath.Join(dir, socketName)
	if len(path) > maxSocketPath {
		return path, fmt.Errorf("the path of a unix socket has at most %d bytes, and %s has %d: signals need a journal.dir with a shorter path",
			maxSocketPath, path, len(path))
	}
	return path, nil
}

// Listen makes the socket in the directory of a journal whose lock the caller holds, so that no other exporter has it. It is
// for the caller's user alone. A socket that a process has left behind is replaced, and one that is answered is not.
func Listen(dir string) (net.Listener, error) {
	path, err := SocketPath(dir)
	if err != nil {
		return nil, err
	}
	if err := removeAbandonedSocket(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil { // the directory is private from the first moment on
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// removeAbandonedSocket removes a socket without a process that answers it.
func removeAbandonedSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is no socket, and is left as it is: remove it", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s is answered by another process, and is left as it is", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
