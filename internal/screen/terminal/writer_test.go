package terminal

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// hostile has characters that act on terminals, and "plain" ones that must stay.
const hostile = "C0 \x1b]0;x\x07 \r\x08\x00\x7f, C1 \u009b2J \u0085, bidi \u202e\u2066, lines \u2028\u2029, hidden \u200b\u00ad\ufeff\U000e0001"

const plain = "plain é 世 😀 \ufffd\ttab\n"

// steering returns the characters of text that act on a terminal, by a list of its own.
func steering(text string) (found []rune) {
	for _, r := range text {
		if strings.ContainsRune("\x00\x07\x08\r\x1b\x7f\u0085\u009b\u00ad\u200b\u2028\u2029\u202e\u2066\ufeff\U000e0001", r) {
			found = append(found, r)
		}
	}
	return found
}

// TestNothingWrittenSteersATerminal wherever the text is cut into calls.
func TestNothingWrittenSteersATerminal(t *testing.T) {
	text := hostile + plain
	var want string
	for size := len(text); size > 0; size-- {
		var out bytes.Buffer
		w := NewWriter(&out)
		for rest := []byte(text); len(rest) > 0; rest = rest[min(size, len(rest)):] {
			if n, err := w.Write(rest[:min(size, len(rest))]); err != nil || n != min(size, len(rest)) {
				t.Fatal(n, err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if want == "" {
			want = out.String()
		}
		if got := out.String(); got != want || len(steering(got)) > 0 || !strings.HasSuffix(got, plain) {
			t.Fatalf("in pieces of %d: %q", size, got)
		}
	}
}

func TestJSONStaysTheSameValue(t *testing.T) {
	quoted, err := json.Marshal(map[string]string{hostile: plain + hostile})
	if err != nil {
		t.Fatal(err)
	}
	var read map[string]string
	if err := json.Unmarshal(AppendEscaped(nil, quoted, EscapeJSON), &read); err != nil || read[hostile] != plain+hostile {
		t.Errorf("read %q (%v)", read, err)
	}
}

// TestBytesThatAreNoTextAreReplaced as readers of JSON do: some terminals act on C1 controls in one byte.
func TestBytesThatAreNoTextAreReplaced(t *testing.T) {
	for _, text := range []string{"a\x9b2J", "a\xc2", "a\xf0\x9f\x98", "\x80\x80\x80\x80\x80", "a\xff"} {
		var out bytes.Buffer
		w := NewWriter(&out)
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(out.Bytes()) || !strings.Contains(out.String(), `\ufffd`) {
			t.Errorf("%q is written as %q", text, out.String())
		}
	}
}

func FuzzEscaping(f *testing.F) {
	f.Add([]byte(hostile + plain))
	f.Add([]byte("\x9b\xc2"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got := AppendEscaped(nil, text, EscapeJSON)
		if len(steering(string(got))) > 0 || !utf8.Valid(got) {
			t.Errorf("%q is written as %q", text, got)
		}
		if again := AppendEscaped(nil, got, EscapeJSON); !bytes.Equal(again, got) {
			t.Errorf("%q is changed again to %q", got, again)
		}
	})
}
