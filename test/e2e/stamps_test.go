package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

const (
	stampAnnotation = "kubecdc.io/stamp"
	victim          = "victim" // the user in each forged stamp, who writes nothing
	// stampsCountAfter is more than the --request-timeout of newAudited.
	stampsCountAfter = "7s"
	stampedAtLeast   = 0.95
)

// forgeStamp returns an annotation, after a comma, that names another user for the write that replaces the present version
// of an object: what would be believed if the policy let it pass.
func (u *user) forgeStamp(ctx context.Context, item string) string {
	if !u.a.forges || u.a.isOlder(u.url) {
		return ""
	}
	replaced := "new"
	if code, h := u.doRequest(ctx, "GET", item, ""); code == 200 {
		replaced = h.Metadata.ResourceVersion
	}
	return fmt.Sprintf(`,"%s":"%s%s %s"`, stampAnnotation, replaced, stampedObject(item), victim)
}

// stampedObject returns how a stamp names the object of a path, after the version that was replaced.
func stampedObject(item string) string {
	parts := strings.Split(strings.TrimPrefix(item, "/api/v1/"), "/") // namespaces, its name, resource, name
	group := ""
	if parts[0] == "" { // apis, group, version
		group, parts = parts[2], parts[4:]
	}
	return ":" + group + "/" + parts[2] + "/" + parts[1] + "/" + parts[3]
}

// recordStampable records whether the version in an answer is the result of a write that the policy stamps.
func (b *clientAnswers) recordStampable(h answerHead, method, path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	version := h.Metadata.UID + "@" + h.Metadata.ResourceVersion
	if method == "DELETE" || strings.Contains(path, "/scale") || strings.Contains(path, "/status") {
		b.otherwise[version] = true
	} else {
		b.stampable[version] = true
	}
}

// newStamped starts a control plane whose users send a forged stamp with each write, applies the printed policy, and starts
// an exporter that reads stamps, and audit events only if it shall.
func newStamped(t *testing.T, events bool, with ...func(*audited, *controlplane.Options)) *audited {
	t.Helper()
	a := newAudited(t, append(with, func(a *audited, o *controlplane.Options) {
		a.forges, a.stamped, a.eventless = true, true, !events
		if !events {
			for i, arg := range o.APIServerArgs {
				if strings.HasPrefix(arg, "--audit-webhook") {
					o.APIServerArgs[i] = "--audit-log-maxage=1" // nothing is sent
				}
			}
		}
	})...)
	a.applyStampPolicy()
	err := a.exporter.Configure(func(s *exporter.Settings) {
		if !events {
			s.Audit = map[string]any{"window": concludesIn}
		}
		s.Audit["stamps"] = map[string]any{"enabled": true, "grace": stampsCountAfter}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.awaitCondition("StampsUnchecked", false) // it is reported until the policy was read once
	a.awaitCondition("StampsUnproven", false)
	return a
}

const (
	stampPolicies = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolic"
	stampBinding  = stampPolicies + "ybindings/kubecdc-stamp"
)

// applyStampPolicy applies what exporter audit-policy --stamp prints.
func (a *audited) applyStampPolicy() {
	a.t.Helper()
	policy, binding := a.stampPolicy()
	a.applyPolicy(stampPolicies, policy, binding)
}

// applyStampBinding puts a deleted binding back.
func (a *audited) applyStampBinding() {
	a.t.Helper()
	_, binding := a.stampPolicy()
	admin := a.newUser(0)
	admin.contentType = "application/yaml"
	admin.mustDo(a.t, "POST", stampPolicies+"ybindings", binding)
}

func (a *audited) stampPolicy() (policy, binding string) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), arriveWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, a.program, "audit-policy", "--stamp", "-c", filepath.Join(a.dir, "offline.yaml")).Output()
	if err != nil {
		a.t.Fatalf("audit-policy --stamp: %v", err)
	}
	policy, binding, _ = strings.Cut(string(out), "---\n")
	return policy, binding
}

// awaitCondition waits until the exporter reports, or does not report, a condition.
func (a *audited) awaitCondition(code string, reported bool) {
	a.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(a.t, lookEvery) {
		_, text, err := a.exporter.Get(a.t.Context(), "/metrics")
		if err == nil && strings.Contains(text, `kubecdc_condition{code="`+code+`"`) == reported && strings.Contains(text, "kubecdc_ready 1") {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("%s reported: %v, want %v (%v)", code, !reported, reported, err)
		}
	}
}

// stampedShare returns how many changes of the stream stamps can name, and how many are named.
func (a *audited) stampedShare() (stampable, named int) {
	a.t.Helper()
	records := a.readRecords()
	by, seen := a.authorsByID(records), map[string]bool{}
	for _, c := range records {
		id, _ := c["id"].(string)
		version := fmt.Sprint(c["uid"], "@", c["resourceVersion"])
		if (c["type"] != "added" && c["type"] != "updated") || c["coalesced"] == true || seen[id] || !a.by.stampable[version] || a.by.otherwise[version] {
			continue
		}
		seen[id] = true
		if stampable++; by[id] != "" {
			named++
		}
	}
	return stampable, named
}

// verifyStamps verifies all names of the stream, and that nothing in it has a stamp.
func (a *audited) verifyStamps(v verdict) {
	a.t.Helper()
	if text := readText(a.t, a.stream); strings.Contains(text, stampAnnotation) || strings.Contains(text, victim) {
		a.t.Error("a stamp is in the stream")
	}
	if v.judged < v.named/2 {
		a.t.Errorf("only %d of %d names are judged", v.judged, v.named)
	}
}

// TestStampsNameAuthorsWithoutAnAuditLog: of all changes that the policy stamps, at once, over restarts of the exporter, and
// never a wrong one, also while the policy is away and clients forge stamps with each write.
func TestStampsNameAuthorsWithoutAnAuditLog(t *testing.T) {
	a := newStamped(t, false)
	a.writeLoad(fewWrites/2, spread)
	if err := a.exporter.Kill(); err != nil {
		t.Fatal(err)
	}
	a.writeLoad(fewWrites/4, spread)
	if err := a.exporter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.writeLoad(fewWrites/4, spread)
	a.awaitSettled()
	stampable, named := a.stampedShare()
	v := a.judgeStream()
	t.Logf("%d changes, %d named, %d judged, %d wrong; of %d that can be stamped %d are named; not named: %v",
		v.changes, v.named, v.judged, v.wrong, stampable, named, v.unnamed)
	if stampable < 100 || float64(named) < stampedAtLeast*float64(stampable) {
		t.Errorf("%d of %d changes that can be stamped are named", named, stampable)
	}
	a.verifyStamps(v)

	admin := a.newUser(0)
	var loading sync.WaitGroup
	loading.Go(func() { a.writeLoad(fewWrites/2, spread) })
	admin.mustDo(t, "DELETE", stampBinding, "")
	a.awaitCondition("StampsUnproven", true)
	loading.Wait()
	a.writeLoad(fewWrites/4, spread) // each stamp is the forged one
	loading.Go(func() { a.writeLoad(fewWrites/2, spread) })
	a.applyStampBinding()
	a.awaitCondition("StampsUnproven", false)
	loading.Wait()
	a.awaitGap("stamps prove nothing after version", func() {})
	a.awaitGap("stamps proved nothing until version", func() {})
	before := a.sumMetric("kubecdc_attributed_stamped_total")
	a.writeLoad(fewWrites/4, spread)
	a.awaitSettled()
	v = a.judgeStream()
	t.Logf("%d changes, %d named, %d judged, %d wrong", v.changes, v.named, v.judged, v.wrong)
	if a.sumMetric("kubecdc_attributed_stamped_total") == before {
		t.Error("no author is known from stamps after the policy was put back")
	}
	a.verifyStamps(v)
}
