package config

import (
	"context"
	"crypto/sha256"
	"time"
)

// lookInterval is the time between two looks at the file. What two looks in succession find alike is what its writer left.
const lookInterval = 500 * time.Millisecond

// Watch calls changed once at the start, to cover earlier changes, and whenever what the path leads to has changed, until
// ctx ends: other content, or another reason why there is none. changed is called from the goroutine of Watch. The content
// is read each time and compared, because nothing else is true of every way to a file: links, directories that are renamed
// into place, mounted ConfigMaps, file systems of other machines.
func Watch(ctx context.Context, path string, changed func()) {
	var known, before string
	looks := time.NewTicker(lookInterval)
	defer looks.Stop()
	for {
		found := look(path)
		if found == before && found != known {
			known = found
			changed()
		}
		before = found
		select {
		case <-ctx.Done():
			return
		case <-looks.C:
		}
	}
}

// look returns a text that is the same as long as the content of the file is, or the reason why it cannot be read.
func look(path string) string {
	content, err := readLimited(path, maxFileBytes)
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(content)
	return string(sum[:])
}
