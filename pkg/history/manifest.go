package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FormatVersion is that of the manifest and of the columns. A reader rejects a newer one.
const FormatVersion = 1

// manifestDir is the folder of the manifests. Each is a file of its own, named by its number, and is never changed: the
// writer that creates the next number first has made a commit.
const manifestDir = "manifest"

const manifestExt = ".json"

// Manifest is a commit: all files of a history at one moment, in the order of their rows.
type Manifest struct {
	Format  int    `json:"format"`  // FormatVersion
	Version int64  `json:"version"` // number of the commit
	Writer  string `json:"writer"`  // an identity of one process's turn
	History string `json:"history"` // an identity of the folder's content, made with the first commit
	Files   []File `json:"files"`
	// Read is up to where the source of an index has been read: see [Batch.With]. An exporter writes none.
	Read json.RawMessage `json:"read,omitempty"`
}

// File is a file of a history. The rows of one follow those of the one before it in sequence; within a file they are sorted
// by object.
type File struct {
	Path          string    `json:"path"` // below the folder of the history, with slashes
	Level         int       `json:"level"`
	Bytes         int64     `json:"bytes"`
	Rows          int64     `json:"rows"` // without those of type Alive
	FirstSequence int64     `json:"firstSequence"`
	LastSequence  int64     `json:"lastSequence"`
	From          time.Time `json:"from"` // of Row.Time, without rows of type Alive
	To            time.Time `json:"to"`
	FirstKey      Key       `json:"firstKey"`
	LastKey       Key       `json:"lastKey"`
	// Large is set if the file begins a new account: it has a row of type Alive for each object that existed at its start.
	Large bool  `json:"large,omitempty"`
	Alive int64 `json:"alive,omitempty"` // how many rows of type Alive it has
}

// LastSequence returns the sequence of the newest row; 0 in an empty history.
func (m *Manifest) LastSequence() int64 {
	if len(m.Files) == 0 {
		return 0
	}
	return m.Files[len(m.Files)-1].LastSequence
}

// Begin returns since when the history knows everything: before it, nothing is known. ok is false in an empty history.
func (m *Manifest) Begin() (begin time.Time, ok bool) {
	if len(m.Files) == 0 {
		return time.Time{}, false
	}
	return m.Files[0].From, true
}

// base returns the index of the file from which on the state at t can be told: that, and the rows up to t behind it.
func (m *Manifest) base(t time.Time) (base int) {
	for i := 1; i < len(m.Files) && !m.Files[i-1].To.After(t); i++ {
		if m.Files[i].Large {
			base = i
		}
	}
	return base
}

// manifestName returns the name of a manifest.
func manifestName(version int64) string {
	return fmt.Sprintf("%s/%016d%s", manifestDir, version, manifestExt)
}

// manifestVersions returns the numbers of the manifests that there are, ascending.
func manifestVersions(s Store) (all []int64, err error) {
	names, err := s.list(manifestDir + "/")
	for _, name := range names {
		digits, ok := strings.CutSuffix(path.Base(name), manifestExt)
		if version, err := strconv.ParseInt(digits, 10, 64); ok && err == nil {
			all = append(all, version)
		}
	}
	slices.Sort(all)
	return all, err
}

// ReadManifest returns the newest manifest of a store; one with version 0 if there is none.
func ReadManifest(s Store) (*Manifest, error) {
	for {
		all, err := manifestVersions(s)
		if err != nil || len(all) == 0 {
			return &Manifest{Format: FormatVersion}, err
		}
		newest := all[len(all)-1]
		m, err := readManifest(s, manifestName(newest))
		if !errors.Is(err, fs.ErrNotExist) { // otherwise the writer has removed it behind newer ones
			return m, err
		}
	}
}

func readManifest(s Store, name string) (*Manifest, error) {
	content, err := s.read(name)
	if err != nil {
		return nil, err
	}
	m := &Manifest{}
	if err := json.Unmarshal(content, m); err != nil {
		return nil, fmt.Errorf("%s in %s is no manifest of a history: %w", name, s, err)
	}
	if m.Format != FormatVersion {
		return nil, fmt.Errorf("%s in %s has format %d, and this version reads %d: use a newer version", name, s, m.Format, FormatVersion)
	}
	return m, nil
}
