package stdout

import (
	"fmt"
	"os"
	"strings"
)

// Config says where the lines go.
type Config struct {
	// Path names a file to append to. It is created, for its owner only (0600), since objects may hold secrets; an
	// existing file keeps its mode, and is refused if it holds something else than changes. It may be renamed, deleted or
	// emptied at any time. Who follows it must take whole lines only: one that a crash has torn is cut off at the next
	// start. Empty means standard output.
	Path string `mapstructure:"path"`
}

// Validate checks what can be known without touching the file system.
func (c Config) Validate() error {
	if strings.HasSuffix(c.Path, string(os.PathSeparator)) {
		return fmt.Errorf("stdout.path: %q is a directory; name a file in it", c.Path)
	}
	return nil
}
