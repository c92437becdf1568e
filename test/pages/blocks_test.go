package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// block is a group of commands on a page.
type block struct {
	place      string // PAGE:LINE
	text       string
	background bool
	stops      string // how the command begins that has to end before
}

// blocksOf reads the runnable blocks of a page.
func blocksOf(t *testing.T, root, page string) (found []block) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	var open *block
	number := 0
	for line := range strings.Lines(string(content)) {
		number++
		how, runnable := strings.CutPrefix(strings.TrimSpace(line), "```sh runnable")
		switch {
		case runnable:
			open = &block{place: fmt.Sprintf("%s:%d", page, number), background: how == " background"}
			if stops, ok := strings.CutPrefix(how, " stops "); ok {
				open.stops = stops
			} else if how != "" && !open.background {
				t.Fatalf("%s: what is %q?", open.place, how)
			}
		case open != nil && strings.HasPrefix(line, "```"):
			found, open = append(found, *open), nil
		case open != nil:
			open.text += line
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no runnable block", page)
	}
	return found
}

// listings reads the blocks of a page that have this mark.
func listings(t *testing.T, root, page, mark string) (found []string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	for _, rest := range strings.Split(string(content), "```"+mark+"\n")[1:] {
		text, _, _ := strings.Cut(rest, "```")
		found = append(found, text)
	}
	return found
}
