package config

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

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
var fileKeyPattern = regexp.MustCompile(`(?i)file$|(^|\.)tls\.|\.credentials$|\.nkeySeed$`)

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
