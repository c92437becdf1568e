package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// validateCharacters reports strings with characters that cannot be seen, wherever they come from: they do not reach a name,
// a path or an address on purpose. Secrets may have any.
func validateCharacters(rep *reporter, c *Config) {
	forEachString(reflect.ValueOf(c).Elem(), "", func(path, text string) {
		if mayBeSecret(path) && !namesFile(path) {
			return
		}
		at := strings.IndexFunc(text, func(r rune) bool {
			return isInvisible(r) && (lastKey(path) != "filter" || !strings.ContainsRune("\n\t\r", r))
		})
		if at >= 0 {
			r := []rune(text[at:])[0]
			rep.addProblem(path, Problem{Message: fmt.Sprintf("contains the invisible character %U at position %d", r, at+1),
				Found: strconv.QuoteToASCII(text), Expected: "visible characters"})
		} else if text != "" && strings.TrimSpace(text) == "" && slices.Contains(namesOfFiles, lastKey(path)) {
			rep.addProblem(path, Problem{Message: "holds only blanks", Found: strconv.Quote(text), Expected: "a path"})
		}
	})
}

// namesOfFiles are the keys of paths of which nothing else checks that they have visible characters.
var namesOfFiles = []string{"dir", "path"}

// isInvisible reports whether a character cannot be seen, or changes how its neighbors are shown: control and format
// characters, and blanks other than a space.
func isInvisible(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r != ' ' && unicode.IsSpace(r) || r == unicode.ReplacementChar
}

// forEachString calls f for every string of v, with its path.
func forEachString(v reflect.Value, path string, f func(path, text string)) {
	switch v.Kind() {
	case reflect.String:
		f(path, v.String())
	case reflect.Pointer:
		if !v.IsNil() {
			forEachString(v.Elem(), path, f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			forEachString(v.Index(i), path+"["+strconv.Itoa(i)+"]", f)
		}
	case reflect.Struct:
		fields := fieldsOf(v.Type())
		for _, key := range keysInStructOrder(fields) {
			forEachString(v.FieldByIndex(fields[key].index), joinPath(path, key), f)
		}
	}
}
