package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kubecdc/kubecdc/test/markdown"
)

// TestCommandsThatPagesNameHaveTheirFlags takes each command line of the exporter from the pages, the help and the files of
// deploy/ apart: the command exists, and each flag is one of that command, not only of another one.
func TestCommandsThatPagesNameHaveTheirFlags(t *testing.T) {
	for _, line := range []string{"exporter verify --stamp", "exporter journal show", "exporter state", "exporter tap -c x", "a | exporter rbac --for 1m"} {
		if complaint := wrongCommand(line); (complaint == "") != (line == "exporter state") {
			t.Errorf("%s: %q", line, complaint)
		}
	}
	lines := 0
	check := func(place, line string) {
		for _, words := range commandLines(line) {
			lines++
			if complaint := wrongWords(words); complaint != "" {
				t.Errorf("%s: exporter %s: %s", place, strings.Join(words, " "), complaint)
			}
		}
	}
	for _, path := range pagesOf(t) {
		content := textOf(t, filepath.Join("../..", path))
		joined := strings.ReplaceAll(content, "\\\n", " ") // a command that goes on in the next line
		for _, l := range markdown.Parse(joined).Lines {
			for _, code := range l.Code() {
				check(path, code)
			}
		}
	}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if strings.HasPrefix(line, " ") { // in the help a command stands in a line of its own
				check("the help of "+cmd.CommandPath(), line)
			}
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(rootCommand())
	if lines < 80 {
		t.Errorf("%d command lines are found", lines)
	}
}

var sectionOfCommand = regexp.MustCompile("^## ([a-z-]+)( |$)")

// TestFlagsInTheSectionOfACommandAreItsOwn: docs/commands.md lists flags under the heading of their command.
func TestFlagsInTheSectionOfACommandAreItsOwn(t *testing.T) {
	var cmd *cobra.Command
	flags := 0
	for _, l := range markdown.Parse(textOf(t, "../../docs/commands.md")).Lines {
		if strings.HasPrefix(l.Text, "## ") && !l.Block {
			cmd = nil
			if m := sectionOfCommand.FindStringSubmatch(l.Text); m != nil {
				cmd, _, _ = rootCommand().Find([]string{m[1]})
			}
		}
		for _, code := range l.Code() {
			if cmd == nil || !cmd.HasParent() || l.Block || !strings.HasPrefix(code, "-") {
				continue
			}
			flags++
			if complaint := wrongFlag(cmd, code); complaint != "" {
				t.Errorf("docs/commands.md:%d: %s", l.Number, complaint)
			}
		}
	}
	if flags < 10 {
		t.Errorf("%d flags are found", flags)
	}
}

// pagesOf lists what people read.
func pagesOf(t *testing.T) []string {
	t.Helper()
	all := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	for _, dir := range []string{"docs", "deploy", "clients", "configs"} {
		err := fs.WalkDir(os.DirFS("../.."), dir, func(path string, _ fs.DirEntry, err error) error {
			if filepath.Ext(path) == ".md" {
				all = append(all, path)
			}
			return err
		})
		must(t, err)
	}
	return all
}

// programs are the ways to name the program.
var programs = []string{"exporter", "bin/exporter", "./exporter", "/exporter", "$(exporter", "<(exporter", "(exporter"}

// commandLines returns the words behind each call of the program.
func commandLines(line string) (all [][]string) {
	words := strings.Fields(line)
	for i, word := range words {
		if !slices.Contains(programs, word) {
			continue
		}
		rest := words[i+1:]
		end := slices.IndexFunc(rest, func(w string) bool {
			return strings.ContainsAny(w[:1], "|#&;>→…(") || w == "--" || w == `\` || slices.Contains(programs, w)
		})
		if end >= 0 {
			rest = rest[:end]
		}
		if len(rest) > 0 {
			all = append(all, rest)
		}
	}
	return all
}

// wrongCommand is the first complaint about a line; "" if there is none.
func wrongCommand(line string) string {
	for _, words := range commandLines(line) {
		if complaint := wrongWords(words); complaint != "" {
			return complaint
		}
	}
	return ""
}

var commandWord = regexp.MustCompile(`^[a-z][a-z-]*$`)

func wrongWords(words []string) string {
	cmd, isValue := rootCommand(), false
	cmd.InitDefaultCompletionCmd()
	for _, word := range words {
		word = strings.TrimRight(word, "),.;:")
		if strings.HasPrefix(word, "-") {
			if complaint := wrongFlag(cmd, word); complaint != "" {
				return complaint
			}
			isValue = !strings.Contains(word, "=")
			continue
		}
		if commandWord.MatchString(word) && cmd.HasSubCommands() && !isValue {
			i := slices.IndexFunc(cmd.Commands(), func(sub *cobra.Command) bool { return sub.Name() == word || sub.HasAlias(word) })
			if i < 0 {
				return cmd.CommandPath() + " has no command " + word
			}
			cmd = cmd.Commands()[i]
		}
		isValue = false
	}
	return ""
}

// wrongFlag reports whether a command has a flag, which may be followed by its value.
func wrongFlag(cmd *cobra.Command, word string) string {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	name, _, _ := strings.Cut(strings.Fields(word)[0], "=")
	var known bool
	if long, isLong := strings.CutPrefix(name, "--"); isLong {
		known = cmd.Flag(long) != nil
	} else {
		short := strings.TrimPrefix(name, "-")
		known = short != "" && cmd.Flags().ShorthandLookup(short[:1]) != nil
	}
	if !known {
		return cmd.CommandPath() + " has no flag " + name
	}
	return ""
}
