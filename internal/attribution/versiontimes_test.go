package attribution

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
)

func requestAnswered(version int, done audit.Time) *Request {
	return &Request{Origin: "api", Event: audit.Event{
		Resource: "pods", Done: done, Received: done - 1, Answer: audit.Object{ResourceVersion: strconv.Itoa(version)},
	}}
}

// TestVersionExistedOnceItOrNewerWasAnswered compares with a search through all answers, in random orders.
func TestVersionExistedOnceItOrNewerWasAnswered(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		a, all := newVersionTimes(), []*Request{}
		a.recordReached("50")
		for range 60 {
			r := requestAnswered(1+random.IntN(40), audit.Time(10+random.IntN(100)))
			a.recordAnswer(r)
			all = append(all, r)
		}
		for range 60 {
			asks, version := requestAnswered(0, audit.Time(random.IntN(120))), 1+random.IntN(45)
			want := false
			for _, r := range all {
				v, _ := strconv.Atoi(r.Answer.ResourceVersion)
				want = want || v >= version && r.Done < asks.Received
			}
			if got := a.existedBefore(asks, strconv.Itoa(version)); got != (want && asks.Received != 0) {
				t.Fatalf("version %d before %d: %v, want %v", version, asks.Received, got, want)
			}
		}
	}
}

// TestVersionDidNotExistBeforeAnOlderOneWasMade compares with a search through all creations, in random orders.
func TestVersionDidNotExistBeforeAnOlderOneWasMade(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		a, all := newVersionTimes(), map[int]*Request{}
		for range 60 {
			r := requestAnswered(1+random.IntN(1000), audit.Time(10+random.IntN(100)))
			v, _ := strconv.Atoi(r.Answer.ResourceVersion)
			if r.Code, r.Outcome, r.Answer.UID = statusCreated, audit.Stored, "u"; all[v] != nil {
				continue // a version is made once
			}
			a.recordAnswer(r)
			all[v] = r
		}
		for range 60 {
			asks, version := requestAnswered(0, audit.Time(random.IntN(120))), 1+random.IntN(1000)
			want := false
			for v, r := range all {
				want = want || v <= version && r.Received > asks.Done
			}
			if got := a.madeAfter(asks, strconv.Itoa(version)); got != (want && asks.Done != 0) {
				t.Fatalf("version %d after %d: %v, want %v", version, asks.Done, got, want)
			}
		}
	}
}

func TestAnswersOfOtherClocksAreIgnored(t *testing.T) {
	a := newVersionTimes()
	a.recordReached("9")
	a.recordAnswer(requestAnswered(9, 5))
	for name, change := range map[string]func(*Request){
		"another API server":  func(r *Request) { r.Origin = "other" },
		"an unknown one":      func(r *Request) { r.Origin = "" },
		"another resource":    func(r *Request) { r.Resource = "services" },
		"without a time":      func(r *Request) { r.Received = 0 },
		"a time before it":    func(r *Request) { r.Received = 5 },
		"after it, by itself": func(r *Request) {},
	} {
		r := requestAnswered(9, 11)
		change(r)
		if got := a.existedBefore(r, "7"); got != (name == "after it, by itself") {
			t.Errorf("%s: %v", name, got)
		}
	}
	a.recordAnswer(&Request{Event: audit.Event{Resource: "pods", Done: 1, Answer: audit.Object{ResourceVersion: "9"}}})
	if a.existedBefore(&Request{Event: audit.Event{Resource: "pods", Received: 9}}, "7") {
		t.Error("an unknown API server has a clock")
	}
}

// TestClocksOfOldConnectionsAreRemoved uses a new connection for each answer.
func TestClocksOfOldConnectionsAreRemoved(t *testing.T) {
	a := newVersionTimes()
	for i := range 10 * maxClocks {
		r := requestAnswered(i+1, audit.Time(i+2))
		r.Origin = strconv.Itoa(i)
		a.recordAnswer(r)
	}
	if n := len(a.byResource.all); n != maxClocks {
		t.Errorf("%d clocks are kept", n)
	}
}

func TestAnswersAboveSixtyFourBitsProveExistence(t *testing.T) {
	a := newVersionTimes()
	a.recordReached("18446744073709551618")
	r := requestAnswered(1, 5)
	r.Answer.ResourceVersion = "18446744073709551617"
	a.recordAnswer(r)
	if !a.existedBefore(requestAnswered(1, 11), "18446744073709551616") {
		t.Error("an older version did not exist")
	}
}

// TestAnswerAheadOfTheStreamProvesNothing answers with a version that no object has: what is received later is not too late,
// and genuine answers count as before.
func TestAnswerAheadOfTheStreamProvesNothing(t *testing.T) {
	a := newVersionTimes()
	a.recordReached("7")
	forged := requestAnswered(1, 2)
	forged.Answer.ResourceVersion = "99999999999999999999999999"
	a.recordAnswer(forged)
	a.recordAnswer(requestAnswered(8, 20))
	if a.existedBefore(requestAnswered(1, 11), "7") || a.existedBefore(requestAnswered(1, 31), "7") {
		t.Error("an answer ahead of the stream proves that a version existed")
	}
	a.recordReached("9")
	if a.existedBefore(requestAnswered(1, 11), "8") || !a.existedBefore(requestAnswered(1, 31), "8") {
		t.Error("the answer with version 8 does not count once the stream has it")
	}
}
