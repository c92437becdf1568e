package config

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/pkg/credentials"
)

// maxCredentialBytes bounds the size of a file that a sink reads; certificate bundles are the largest ones.
const maxCredentialBytes = 4 << 20

// validateFiles checks every file that sinks read or write, so that nothing is created at a start that is going to fail. It
// never quotes the content of a file.
func validateFiles(rep *reporter, c *Config) {
	if c.Cluster.Kubeconfig == "" {
		validateContext(rep, c.Cluster)
	}
	for i, s := range c.Sinks {
		at := fmt.Sprintf("sinks[%d]", i)
		for _, f := range s.credentialFiles() {
			validateCredentialFile(rep, joinPath(at, f.Key), f)
		}
		if s.History != nil {
			validateFolder(rep, at+".history.dir", s.History.Dir)
		}
		if s.Stdout != nil && s.Stdout.Path != "" {
			validateOutputFile(rep, at+".stdout.path", s.Stdout.Path, c.Journal.Dir)
		}
	}
	for _, f := range c.Audit.credentialFiles() {
		validateCredentialFile(rep, f.Key, f)
	}
	validateToken(rep, c.Admin.Signals.Token)
	for _, f := range c.secretFiles {
		if _, err := readFileReference(f.Path); err != nil {
			rep.addProblem(f.Key, Problem{Message: err.Error()})
		}
	}
	validateFolder(rep, "journal.dir", c.Journal.Dir)
}

// validateFolder checks that nothing else is in the place of a directory.
func validateFolder(rep *reporter, path, name string) {
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		rep.addProblem(path, Problem{Message: "not a directory", Found: name, Expected: "a directory, or a path where one can be created"})
	}
}

func (s Sink) credentialFiles() []credentials.File {
	switch {
	case s.Kafka != nil:
		return s.Kafka.Files()
	case s.NATS != nil:
		return s.NATS.Files()
	case s.Webhook != nil:
		return s.Webhook.Files()
	case s.History != nil:
		return s.History.Files()
	}
	return nil
}

func validateCredentialFile(rep *reporter, path string, f credentials.File) {
	content, err := readLimited(f.Path, maxCredentialBytes)
	switch {
	case err != nil:
		rep.addProblem(path, Problem{Message: err.Error()})
	case len(bytes.TrimSpace(content)) == 0:
		rep.addProblem(path, Problem{Message: "file " + f.Path + " is empty"})
	case !bytes.Contains(content, []byte("-----BEGIN ")):
		rep.addProblem(path, Problem{Message: "file " + f.Path + " holds no PEM", Expected: `text with a line such as "-----BEGIN CERTIFICATE-----"`})
	}
}

// validateOutputFile checks that lines can be appended to a file: it is in a directory that exists, or that the journal is
// going to create. Character devices are allowed, for terminals and /dev/null.
func validateOutputFile(rep *reporter, path, name, journal string) {
	info, err := os.Stat(name)
	switch {
	case err == nil && !info.Mode().IsRegular() && info.Mode()&os.ModeCharDevice == 0:
		found := "a directory"
		if !info.IsDir() {
			found = fileKind(info.Mode())
		}
		rep.addProblem(path, Problem{Message: "not a file that lines can be appended to", Found: found, Expected: "a regular file, or a path where one can be created"})
	case errors.Is(err, os.ErrNotExist):
		if parent, err := os.Stat(filepath.Dir(name)); (err != nil || !parent.IsDir()) && !isWithin(resolvePath(journal), resolvePath(filepath.Dir(name))) {
			rep.addProblem(path, Problem{Message: "its directory does not exist", Found: filepath.Dir(name), Expected: "a directory that exists"})
		}
	case err != nil:
		rep.addProblem(path, Problem{Message: fmt.Sprintf("cannot access file %s: %v", name, fileErrorCause(err))})
	}
}

// isSameFile reports whether two paths lead to one file. Files that do not exist are compared by their resolved paths.
func isSameFile(a, b string) bool {
	first, errA := os.Stat(a)
	second, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(first, second) || resolvePath(a) == resolvePath(b)
}

// resolvePath returns the absolute path, with symbolic links resolved as far as they exist; "" is standard output.
func resolvePath(path string) string {
	if path == "" {
		path = "/dev/stdout"
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	return path
}

// readLimited reads a regular file of at most limit bytes. Pipes and devices are refused before reading, because a read may
// block or never end.
func readLimited(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe without a writer would block
	if err != nil {
		return nil, fmt.Errorf("cannot read file %s: %w", name, fileErrorCause(err))
	}
	defer func() { _ = f.Close() }() // read-only
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read file %s: %w", name, fileErrorCause(err))
	case info.IsDir():
		return nil, fmt.Errorf("cannot read file %s: it is a directory", name)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("cannot read file %s: not a regular file (%s)", name, fileKind(info.Mode()))
	case info.Size() > limit:
		return nil, fmt.Errorf("file %s is larger than %s", name, Bytes(limit))
	}
	content, err := io.ReadAll(io.LimitReader(f, limit+1)) // it may grow, and kernel files report no size
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read file %s: %w", name, fileErrorCause(err))
	case int64(len(content)) > limit:
		return nil, fmt.Errorf("file %s is larger than %s", name, Bytes(limit))
	}
	return content, nil
}

func fileKind(mode os.FileMode) string {
	switch {
	case mode&os.ModeNamedPipe != 0:
		return "a pipe"
	case mode&os.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// fileErrorCause removes operation and path from an error of the file system, because the message has them already.
func fileErrorCause(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// encodingProblem reports content that is not UTF-8 text with lines that end in a newline; nil if it is. The YAML library
// would accept UTF-16, and lines that end in a carriage return alone, where a comment hides the rest of the file.
func encodingProblem(content []byte) *Problem {
	const expected = "text in UTF-8 with a newline at the end of each line"
	switch {
	case bytes.HasPrefix(content, []byte{0xFF, 0xFE}), bytes.HasPrefix(content, []byte{0xFE, 0xFF}):
		return &Problem{Line: 1, Message: "not UTF-8", Found: "UTF-16", Expected: expected}
	case bytes.IndexByte(content, 0) >= 0:
		return &Problem{Line: lineAtOffset(content, bytes.IndexByte(content, 0)), Message: "not text", Found: "a zero byte", Expected: expected}
	case !utf8.Valid(content):
		at := firstInvalidUTF8(content)
		return &Problem{Line: lineAtOffset(content, at), Message: "not UTF-8", Found: fmt.Sprintf("the byte 0x%X", content[at]), Expected: expected}
	}
	for i, b := range content {
		if b == '\r' && (i+1 == len(content) || content[i+1] != '\n') {
			return &Problem{Line: lineAtOffset(content, i), Message: "a line that ends in a carriage return alone", Expected: expected}
		}
	}
	return nil
}

func lineAtOffset(content []byte, at int) int { return bytes.Count(content[:at], []byte("\n")) + 1 }

// firstInvalidUTF8 returns the offset of the first invalid byte of content, which is not valid UTF-8.
func firstInvalidUTF8(content []byte) int {
	at := 0
	for {
		r, size := utf8.DecodeRune(content[at:])
		if r == utf8.RuneError && size <= 1 {
			return at
		}
		at += size
	}
}

// Secrets returns the values of the configuration that must appear in no output: passwords, tokens and keys, whether written
// in the file or resolved from references, and the parts of URLs that may authenticate. Paths of files are not included. The
// values are sorted; the slice belongs to the caller.
func (c *Config) Secrets() []string {
	all := slices.Clone(c.secrets)
	if c.Redaction.Key != "" { // it may come from a variable
		all = append(all, c.Redaction.Key)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// minSecretPartLength is the length from which a part of a URL is treated as a secret; shorter parts are words that other
// texts contain too.
const minSecretPartLength = 8

// recordSecrets records the value at path for [Config.Secrets] if it is, or contains, secrets.
func (d *decoder) recordSecrets(path, value string) {
	switch {
	case value == "" || !mayBeSecret(path) || namesFile(path):
	case strings.Contains(strings.ToLower(lastKey(path)), "url"):
		for address := range strings.SplitSeq(value, ",") {
			d.secrets = append(d.secrets, secretsInURL(strings.TrimSpace(address))...)
		}
	default:
		d.secrets = append(d.secrets, value)
	}
}

// fileKeyPattern matches the paths of keys that hold file names.
var fileKeyPattern = regexp.MustCompile(`(?i)file$|(^|\.)tls\.`)

func namesFile(path string) bool { return fileKeyPattern.MatchString(path) }

// secretsInURL returns the parts of a URL that may authenticate: the password, the query, and long parts of the path.
func secretsInURL(address string) []string {
	u, err := url.Parse(address)
	if err != nil {
		return []string{address}
	}
	var all []string
	if password, given := u.User.Password(); given {
		all = append(all, password)
	} else if token := u.User.Username(); token != "" { // NATS accepts a token there
		all = append(all, token)
	}
	if u.RawQuery != "" {
		all = append(all, u.RawQuery)
	}
	for _, values := range u.Query() {
		all = append(all, values...)
	}
	all = append(all, strings.FieldsFunc(u.EscapedPath(), func(r rune) bool { return r == '/' })...)
	return slices.DeleteFunc(all, func(part string) bool { return len(part) < minSecretPartLength })
}

// mayBeSecret reports, by its key, whether the value at a path must not be shown even if it is written out in the file.
func mayBeSecret(path string) bool {
	key := strings.ToLower(lastKey(path))
	if key == "key" || strings.Contains(path, ".headers[") && key == "value" {
		return true
	}
	for _, word := range []string{"password", "secret", "token", "seed", "nkey", "credential", "jwt", "url"} {
		if strings.Contains(key, word) {
			return true
		}
	}
	return false
}

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
