package config

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Secrets are the values of the configuration that must be in no output: passwords, tokens and keys, whether they are in the
// file or a reference resolved to them, and of URLs everything that may authenticate. Paths of files are none. They are
// in no order.
func (c *Config) Secrets() []string {
	all := slices.Clone(c.secrets)
	if c.Redaction.Key != "" { // it may come from a variable
		all = append(all, c.Redaction.Key)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// minSecretPartLength is from which length on a part of a URL can be a secret; below it is a word that other texts have too.
const minSecretPartLength = 8

// recordSecrets remembers the value at a path, if it is a secret or holds some.
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

// fileKeyPattern finds the keys whose values are paths.
var fileKeyPattern = regexp.MustCompile(`(?i)file$|(^|\.)tls\.|\.credentials$|\.nkeySeed$`)

func namesFile(path string) bool { return fileKeyPattern.MatchString(path) }

// secretsInURL are the parts of a URL that may authenticate: the password, the query, and parts of the path that are no words.
func secretsInURL(address string) []string {
	u, err := url.Parse(address)
	if err != nil {
		return []string{address}
	}
	var all []string
	if password, given := u.User.Password(); given {
		all = append(all, password)
	} else if token := u.User.Username(); token != "" { // NATS takes a token there
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
