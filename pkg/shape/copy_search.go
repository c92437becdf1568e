package shape

import (
	"bytes"
	"encoding/base64"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// copySearch searches JSON in annotations for values that a rule redacts elsewhere in the object. Controllers keep states of
// objects in annotations of any name and form, such as kopf's last-handled-configuration and the conversion-data of Cluster
// API. A current value is found by the value, an earlier one by the names above it.
type copySearch struct {
	tails    []path.Path         // the paths of the rule, from the second last name on, which may follow anything
	values   map[string]bool     // redacted values of the object
	prefixes map[string][]string // of values that are searched within longer texts, by their first bytes
}

const (
	minSearchedValue = 4 // shorter values occur everywhere
	searchedPrefix   = 8 // values of at least this length are also found within longer texts
	// maxSamePrefix bounds the cost of values that begin alike: if there are more, the beginning alone is searched.
	maxSamePrefix = 16
)

// tailsOf returns the ends of paths that identify a copy of a value wherever the copy starts: the last two names, with the
// wildcards between and after them.
func tailsOf(paths []path.Path) []path.Path {
	tails := make([]path.Path, len(paths))
	for i, p := range paths {
		start := len(p)
		for names := 0; start > 0 && names < 2; start-- {
			if !p[start-1].Wildcard {
				names++
			}
		}
		tails[i] = p[start:]
	}
	return tails
}

// addValues adds the scalars of a redacted value.
func (s *copySearch) addValues(value rawjson.Value, ofSecret bool) {
	switch value[0] {
	case '{':
		for _, inner := range value.Members() {
			s.addValues(inner, ofSecret)
		}
	case '[':
		for inner := range value.Elements() {
			s.addValues(inner, ofSecret)
		}
	default:
		s.addScalar(value, ofSecret)
	}
}

// addScalar adds a redacted scalar. Values of Secrets are also added decoded.
func (s *copySearch) addScalar(scalar []byte, ofSecret bool) {
	text := scalarText(scalar)
	s.addText(string(text))
	if decoded, err := base64.StdEncoding.DecodeString(string(text)); ofSecret && err == nil {
		s.addText(string(decoded))
	}
}

func (s *copySearch) addText(text string) {
	if len(text) < minSearchedValue || text == "true" || text == "false" || s.values[text] {
		return
	}
	if s.values == nil {
		s.values, s.prefixes = map[string]bool{}, map[string][]string{}
	}
	s.values[text] = true
	if len(text) < searchedPrefix {
		return
	}
	prefix := text[:searchedPrefix]
	if s.prefixes[prefix] = append(s.prefixes[prefix], text); len(s.prefixes[prefix]) > maxSamePrefix {
		s.prefixes[prefix] = []string{prefix}
	}
}

func scalarText(scalar []byte) []byte {
	if scalar[0] == '"' {
		return rawjson.Unquote(scalar)
	}
	return scalar
}

// holdsContainer reports whether a JSON value is a string that holds an object or a list in JSON.
func holdsContainer(value []byte) bool {
	if len(value) == 0 || value[0] != '"' {
		return false
	}
	text := bytes.TrimPrefix(value[1:], []byte("\ufeff"))
	for {
		switch trimmed := bytes.TrimLeft(text, " "); {
		case bytes.HasPrefix(trimmed, []byte(`\n`)), bytes.HasPrefix(trimmed, []byte(`\t`)), bytes.HasPrefix(trimmed, []byte(`\r`)):
			text = trimmed[2:]
		case bytes.HasPrefix(trimmed, []byte(`\u`)): // any encoder may write a character so
			return true
		default:
			return len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[')
		}
	}
}

// isCopied reports whether an annotation holds a redacted value. quoted is its value, for which holdsContainer is true.
func (s *copySearch) isCopied(quoted []byte, level int) bool {
	w := copyWalk{copySearch: s, b: rawjson.Unquote(quoted), level: level}
	end := w.walkValue(rawjson.SkipSpace(w.b, 0), 0)
	switch {
	case w.found:
		return true
	case rawjson.CheckEnd(w.b, end) != nil:
		return s.isSuspicious(w.b)
	}
	return false
}

// isSuspicious reports whether a text that begins as JSON and cannot be read to its end may hold a redacted value: several
// texts in lines, NaN, a text that is cut short or nested too deep.
func (s *copySearch) isSuspicious(text []byte) bool {
	if s.containsValue(text) || bytes.Contains(text, []byte(`\u`)) { // what is escaped is not compared
		return true
	}
	return slices.ContainsFunc(s.tails, func(tail path.Path) bool {
		last := lastNameOf(tail)[0]
		return last.Wildcard || bytes.Contains(text, []byte(`"`+last.Name+`"`))
	})
}

func (s *copySearch) containsValue(text []byte) bool {
	if s.values[string(text)] {
		return true
	}
	for i := 0; len(s.prefixes) > 0 && i+searchedPrefix <= len(text); i++ {
		for _, value := range s.prefixes[string(text[i:i+searchedPrefix])] {
			if len(text)-i >= len(value) && string(text[i:i+len(value)]) == value {
				return true
			}
		}
	}
	return false
}

// copyWalk is a search in one JSON text.
type copyWalk struct {
	*copySearch
	b      []byte
	level  int      // of JSON texts within strings of JSON texts
	names  [][]byte // of the members above the current value; elements of lists have none
	inside int      // how many of them match a path
	found  bool
}

func (w *copyWalk) walkValue(i, depth int) int {
	if i >= len(w.b) || depth > rawjson.MaxDepth || w.found {
		return rawjson.FailAt(i)
	}
	switch w.b[i] {
	case '{':
		m := rawjson.EnterObject(w.b, i)
		for m.Next() {
			m.I = w.walkMember(m.Key, m.I, depth+1)
		}
		return m.I
	case '[':
		e := rawjson.EnterArray(w.b, i)
		for e.Next() {
			e.I = w.walkValue(e.I, depth+1)
		}
		return e.I
	}
	end := rawjson.SkipValue(w.b, i, depth)
	if end >= 0 {
		w.found = w.isRedactedElsewhere(w.b[i:end])
	}
	return end
}

func (w *copyWalk) walkMember(name []byte, i, depth int) int {
	w.names = append(w.names, name)
	matched := w.matchesTail()
	if matched {
		w.inside++
	}
	w.found = w.found || w.containsValue(name)
	end := w.walkValue(i, depth)
	if matched {
		w.inside--
	}
	w.names = w.names[:len(w.names)-1]
	return end
}

func (w *copyWalk) isRedactedElsewhere(scalar []byte) bool {
	switch {
	case string(scalar) == "null", string(scalar) == masked, isHash(scalar):
		return false
	case w.inside > 0 || w.containsValue(scalarText(scalar)):
		return true
	case !holdsContainer(scalar):
		return false
	}
	return w.level == maxCopyDepth || w.isCopied(scalar, w.level+1)
}

// matchesTail reports whether a path of the rule may end at the current value. Where the object itself has redacted values,
// the last name of a path is sufficient at the top of the text, which may be a copy of a part of the object.
func (w *copyWalk) matchesTail() bool {
	for _, tail := range w.tails {
		if endsWith(w.names, tail) {
			return true
		}
		if len(w.names) == 1 && len(w.values) > 0 && endsWith(w.names, lastNameOf(tail)) {
			return true
		}
	}
	return false
}

func lastNameOf(p path.Path) path.Path {
	for i := len(p) - 1; i > 0; i-- {
		if !p[i].Wildcard {
			return p[i:]
		}
	}
	return p
}

// endsWith reports whether the names end with a path. A wildcard stands for one name, or for none in a list.
func endsWith(names [][]byte, p path.Path) bool {
	switch {
	case len(p) == 0:
		return true
	case p[len(p)-1].Wildcard:
		return endsWith(names, p[:len(p)-1]) || len(names) > 0 && endsWith(names[:len(names)-1], p[:len(p)-1])
	case len(names) == 0 || p[len(p)-1].Name != string(names[len(names)-1]):
		return false
	}
	return endsWith(names[:len(names)-1], p[:len(p)-1])
}
