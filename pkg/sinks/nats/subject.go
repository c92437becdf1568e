package nats

import (
	"net/url"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// sampleChange stands for any change in checks of the form of a subject.
var sampleChange event.Change

const hexDigits = "0123456789ABCDEF"

// AppendToken appends text to dst as one subject token and returns the extended slice. Letters, digits, "_" and "-" stay
// as they are, every other byte becomes "=" and two upper-case hexadecimal digits: "web.eu" is "web=2Eeu". Tokens are
// also legal keys of a NATS key-value bucket. Different texts give different tokens.
func AppendToken(dst []byte, text string) []byte {
	for i := 0; i < len(text); i++ {
		if b := text[i]; isPlainByte(b) {
			dst = append(dst, b)
		} else {
			dst = append(dst, '=', hexDigits[b>>4], hexDigits[b&15])
		}
	}
	return dst
}

func isPlainByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '_' || b == '-'
}

// objectKey returns the key of the object that a template gives this subject, as [event.Change.Key]; the subject itself if
// the template does not tell objects apart, or gives no such subject.
func objectKey(template, subject string) string {
	parts, tokens := strings.Split(template, "."), strings.Split(subject, ".")
	if len(parts) != len(tokens) {
		return subject
	}
	values := map[string]string{}
	for i, part := range parts {
		if values[part] = tokens[i]; !strings.Contains(part, "{") && part != tokens[i] {
			return subject
		}
	}
	var names []string
	for _, part := range []string{"{cluster}", "{group}", "{resource}", "{namespace}", "{name}"} {
		token, err := url.PathUnescape(strings.ReplaceAll(values[part], "=", "%"))
		if err != nil || token == "" {
			return subject
		}
		if token == sinks.EmptyValue {
			token = ""
		}
		names = append(names, token)
	}
	return strings.Join(names, "/")
}

// subjectPattern returns the wildcard subject that covers every subject of a template.
func subjectPattern(template *sinks.Template) string {
	const mark = "\x00"
	filled := template.AppendName(nil, &sampleChange, func(dst []byte, _ string) []byte { return append(dst, mark...) })
	tokens := strings.Split(string(filled), ".")
	for i, token := range tokens {
		if strings.Contains(token, mark) {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}
