package process

import (
	"os"
	"strconv"
)

// The user and the group that own nothing.
const nobody = 65534

// AsNobody returns the command line that runs a command as the user without rights where this process is root, for servers
// that refuse to be root; elsewhere the command line itself. What it starts ends with this process.
func AsNobody(command ...string) []string {
	if os.Geteuid() != 0 {
		return command
	}
	id := strconv.Itoa(nobody)
	return append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--pdeathsig", "KILL"}, command...)
}

// OwnedByNobody gives a directory to the user without rights where this process is root.
func OwnedByNobody(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(dir, nobody, nobody)
}
