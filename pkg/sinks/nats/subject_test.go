package nats

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

func TestTokensAreEscapedReversibly(t *testing.T) {
	for text, want := range map[string]string{
		"web":            "web",
		"web.eu":         "web=2Eeu",
		"system:node":    "system=3Anode",
		"a=b":            "a=3Db",
		"Ab_9-":          "Ab_9-",
		"*>\x00 é":       "=2A=3E=00=20=C3=A9",
		"apps":           "apps",
		"cert-manager.i": "cert-manager=2Ei",
	} {
		got := string(AppendToken(nil, text))
		if got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
		if back, err := unescapeToken(got); back != text || err != nil {
			t.Errorf("%q came back as %q, %v", text, back, err)
		}
	}
}

func TestASubjectNamesItsObjectWhereItsTemplateDoes(t *testing.T) {
	const template = "$KV.bucket.{cluster}.{group}.{resource}.{namespace}.{name}"
	for subject, want := range map[string]string{
		"$KV.bucket.c.core.pods.ns.web=2Eeu":           "c/core/pods/ns/web.eu",
		"$KV.bucket.c.apps.deployments._.x":            "c/apps/deployments//x",
		"$KV.bucket.c.core.pods.ns._":                  "c/core/pods/ns/",
		"$KV.other.c.core.pods.ns.web":                 "$KV.other.c.core.pods.ns.web",
		"$KV.bucket.kubecdc.watermark.c=2Fcore=2Fpods": "$KV.bucket.kubecdc.watermark.c=2Fcore=2Fpods",
		"$KV.bucket.c.core.pods.ns.a=ZZ":               "$KV.bucket.c.core.pods.ns.a=ZZ",
	} {
		if got := objectKey(template, subject); got != want {
			t.Errorf("%s names %q, want %q", subject, got, want)
		}
	}
	if got := objectKey("k8s.{resource}", "k8s.pods"); got != "k8s.pods" {
		t.Errorf("a subject of many objects names %q", got)
	}
}

// unescapeToken is the inverse of AppendToken. A token that AppendToken cannot have made is an error.
func unescapeToken(token string) (string, error) {
	text := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		b := token[i]
		if isPlainByte(b) {
			text = append(text, b)
			continue
		}
		if b != '=' || i+2 >= len(token) {
			return "", fmt.Errorf("subject token %q: unexpected %q at position %d", token, b, i+1)
		}
		high, low := strings.IndexByte(hexDigits, token[i+1]), strings.IndexByte(hexDigits, token[i+2])
		if high < 0 || low < 0 || isPlainByte(byte(high<<4|low)) {
			return "", fmt.Errorf("subject token %q: %q at position %d is no escape", token, token[i:i+3], i+1)
		}
		text = append(text, byte(high<<4|low))
		i += 2
	}
	return string(text), nil
}

func FuzzTokensComeBack(f *testing.F) {
	f.Add("web.eu")
	f.Add("=2E")
	f.Fuzz(func(t *testing.T, text string) {
		token := string(AppendToken(nil, text))
		if strings.ContainsAny(token, ".*> \t\r\n\x00") {
			t.Fatalf("%q became %q, which is not one token", text, token)
		}
		if back, err := unescapeToken(token); back != text || err != nil {
			t.Fatalf("%q became %q and came back as %q, %v", text, token, back, err)
		}
		if read, err := unescapeToken(text); err == nil && string(AppendToken(nil, read)) != text {
			t.Fatalf("%q was read as %q, which is written otherwise", text, read)
		}
	})
}

func TestThePatternCoversEverySubject(t *testing.T) {
	for text, want := range map[string]string{
		"k8s.{cluster}.{group}.{resource}.{namespace}.{name}": "k8s.*.*.*.*.*",
		"k8s.x-{cluster}.{name}{type}.end":                    "k8s.*.*.end",
		"all":                                                 "all",
	} {
		template, err := sinks.ParseTemplate(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := subjectPattern(template); got != want {
			t.Errorf("%s: pattern %s, want %s", text, got, want)
		}
		c := &event.Change{Cluster: "a.b", Name: "c.d"}
		if subject := string(template.AppendName(nil, c, AppendToken)); !stream.Covers(want, subject) {
			t.Errorf("%s does not cover %s", want, subject)
		}
	}
}

func TestADeadLetterIsNoCopyOfItsChange(t *testing.T) {
	c := newPod("web", 1)
	letter := *c
	letter.DeadLetter = &event.DeadLetterInfo{Sink: "bus", Reason: "too large"}
	if first, second := changeMessageID(c), changeMessageID(&letter); second != first+"/dead-letter/bus" {
		t.Errorf("the stream may take %q for a copy of %q", second, first)
	}
}
