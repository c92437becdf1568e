package audit

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// rotation lists the rotated files of a log, the oldest modification time first.
type rotation []rotatedFile

type rotatedFile struct {
	path       string
	info       fs.FileInfo
	compressed bool
}

// rotatedFiles finds the rotated files of a log. The API server inserts a time before the extension; logrotate appends a
// suffix.
func rotatedFiles(path string) (rotation, error) {
	base, ext := filepath.Base(path), filepath.Ext(path)
	stem := strings.TrimSuffix(base, ext)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var found rotation
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".gz")
		byAPIServer := strings.HasPrefix(name, stem+"-") && filepath.Ext(name) == ext
		byOthers := name != base && (strings.HasPrefix(name, base+".") || strings.HasPrefix(name, base+"-"))
		if !byAPIServer && !byOthers && e.Name() != base+".gz" {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			found = append(found, rotatedFile{filepath.Join(filepath.Dir(path), e.Name()), info, name != e.Name()})
		}
	}
	slices.SortFunc(found, func(a, b rotatedFile) int {
		return cmp.Or(a.info.ModTime().Compare(b.info.ModTime()), cmp.Compare(a.path, b.path))
	})
	return found, nil
}

// uncompressed returns the files that can be read.
func (all rotation) uncompressed() rotation {
	return slices.DeleteFunc(slices.Clone(all), func(r rotatedFile) bool { return r.compressed })
}

// uncompressedPaths returns the paths of the files that can be read, the newest first.
func (all rotation) uncompressedPaths() (found []string) {
	for _, r := range slices.Backward(all.uncompressed()) {
		found = append(found, r.path)
	}
	return found
}

// writtenSince returns the readable files that were modified after a time.
func (all rotation) writtenSince(t time.Time) rotation {
	return slices.DeleteFunc(all.uncompressed(), func(r rotatedFile) bool { return !r.info.ModTime().After(t) })
}

// writtenAfter returns the readable files that follow another one, which may be one of them.
func (all rotation) writtenAfter(was fs.FileInfo) rotation {
	left := all.uncompressed()
	if i := slices.IndexFunc(left, func(r rotatedFile) bool { return os.SameFile(r.info, was) }); i >= 0 {
		return left[i+1:]
	}
	return left.writtenSince(was.ModTime())
}

// countCompressedAfter counts the compressed files that were modified after another one. If that one is not among the
// rotated files, one of the compressed files is assumed to be it.
func (all rotation) countCompressedAfter(was fs.FileInfo) (n int) {
	itself := 1
	for _, r := range all {
		switch {
		case os.SameFile(r.info, was):
			itself = 0
		case r.compressed && r.info.ModTime().After(was.ModTime()):
			n++
		}
	}
	return max(0, n-itself)
}
