package attribution

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/kubecdc/kubecdc/internal/audit"
)

func answeredWith(version int, done audit.Time) *Request {
	return &Request{Origin: "api", Event: audit.Event{
		Resource: "pods", Done: done, Received: done - 1, Answer: audit.Object{ResourceVersion: strconv.Itoa(version)},
	}}
}

// TestAVersionWasThereWhenItOrANewerOneWasAnswered compares with looking at all answers, in random orders.
func TestAVersionWasThereWhenItOrANewerOneWasAnswered(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		a, all := newAnswers(), []*Request{}
		for range 60 {
			r := answeredWith(random.IntN(40), audit.Time(10+random.IntN(100)))
			a.take(r)
			all = append(all, r)
		}
		for range 60 {
			asks, version := answeredWith(0, audit.Time(random.IntN(120))), random.IntN(45)
			want := false
			for _, r := range all {
				v, _ := strconv.Atoi(r.Answer.ResourceVersion)
				want = want || v >= version && r.Done < asks.Received
			}
			if got := a.before(asks, strconv.Itoa(version)); got != (want && asks.Received != 0) {
				t.Fatalf("version %d before %d: %v, want %v", version, asks.Received, got, want)
			}
		}
	}
}

func TestAnswersOfOthersSayNothing(t *testing.T) {
	a := newAnswers()
	a.take(answeredWith(9, 5))
	for name, change := range map[string]func(*Request){
		"another API server":  func(r *Request) { r.Origin = "other" },
		"an unknown one":      func(r *Request) { r.Origin = "" },
		"another resource":    func(r *Request) { r.Resource = "services" },
		"without a time":      func(r *Request) { r.Received = 0 },
		"a time before it":    func(r *Request) { r.Received = 5 },
		"after it, by itself": func(r *Request) {},
	} {
		r := answeredWith(9, 11)
		change(r)
		if got := a.before(r, "7"); got != (name == "after it, by itself") {
			t.Errorf("%s: %v", name, got)
		}
	}
	a.take(&Request{Event: audit.Event{Resource: "pods", Done: 1, Answer: audit.Object{ResourceVersion: "9"}}})
	if a.before(&Request{Event: audit.Event{Resource: "pods", Received: 9}}, "7") {
		t.Error("an API server that nobody knows has a clock")
	}
}

// TestAnswersOfConnectionsThatCameAndWentAreForgotten has an API server connect again and again.
func TestAnswersOfConnectionsThatCameAndWentAreForgotten(t *testing.T) {
	a := newAnswers()
	for i := range 10 * maxPlaces {
		r := answeredWith(i, audit.Time(i+2))
		r.Origin = strconv.Itoa(i)
		a.take(r)
	}
	if n := len(a.places.all); n != maxPlaces {
		t.Errorf("%d are remembered", n)
	}
}
