package stdout

import (
	"fmt"
	"os"
	"strings"
)

// Config is the destination of the lines.
type Config struct {
	// Path is a file to append to. It is created with mode 0600, since objects may hold secrets; an existing file keeps its
	// mode, and is rejected if it holds anything but changes. It may be renamed, deleted or truncated at any time. Readers must
	// use complete lines only: a line that a crash left torn is truncated at the next start. Empty means standard output.
	Path string `mapstructure:"path"`
}

// Validate checks everything that needs no access to the file system.
func (c Config) Validate() error {
	if strings.HasSuffix(c.Path, string(os.PathSeparator)) {
		return fmt.Errorf("stdout.path: %q is a directory; name a file in it", c.Path)
	}
	return nil
}
