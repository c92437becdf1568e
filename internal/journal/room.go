package journal

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// minChangeShare is the part of MaxBytes that changes have at least. Known objects and last states are what they are: were they
// to leave no room at all, nothing would ever go on.
const minChangeShare = 8

// States of a bound.
var (
	stateHasSpace = condition.State{Name: "ok", Message: "journal goes on"}
	stateFull     = condition.State{Name: "full", Severity: condition.NotReady, Message: "journal waits; nothing is lost meanwhile"}

	stateDeadLettersAccepted = condition.State{Name: "ok", Message: "journal takes dead letters again"}
	stateDeadLettersFull     = condition.State{Name: "full", Severity: condition.NotReady, Message: "journal takes no more dead letters"}
)

// storedSizes are the stored bytes of what is no change; known and bodies as they were measured last.
type storedSizes struct{ known, bodies, dead int64 }

func (s storedSizes) total() int64 { return s.known + s.bodies + s.dead }

// currentSizes are those of now. The caller holds mu.
func (j *Journal) currentSizes() storedSizes {
	s := j.measuredSizes
	for _, sink := range j.sinks {
		s.dead += sink.deadBytes
	}
	return s
}

// changeCapacity is how many bytes of changes may be retained. The caller holds mu.
func (j *Journal) changeCapacity() int64 {
	return max(j.opts.MaxBytes-j.currentSizes().total(), j.opts.MaxBytes/minChangeShare)
}

// isFull says that there is no room for a change. While no sink is behind there is: nothing would ever make any. The caller
// holds mu.
func (j *Journal) isFull() bool {
	if j.logExtent.size() < j.changeCapacity() {
		return false
	}
	slowest, low := slowestSink(j.sinks)
	return slowest == "" || low < j.logExtent.newest
}

// hasSpaceForAppend says whether there is room for one more observation. One that is larger than the room left is admitted whole:
// it could never be admitted otherwise. The caller holds mu.
func (j *Journal) hasSpaceForAppend() bool {
	return !j.diskLow && j.pending < j.opts.PendingBytes && !j.isFull()
}

// blockedReason says why Append waits for more than the disk's next fsync, and what to do about it; "" when it does not. The
// caller holds mu.
func (j *Journal) blockedReason() (reason, remedy string) {
	slowest, _ := slowestSink(j.sinks)
	switch {
	case j.fs.IsFull():
		return "the journal's disk is full", "free space or enlarge the volume"
	case j.diskLow:
		return fmt.Sprintf("the journal's disk has no more left than journal.reserve, and sink %q is the furthest behind", slowest),
			"it must catch up, or free space or enlarge the volume"
	case !j.isFull():
		return "", ""
	case j.logExtent.size() < j.currentSizes().total():
		return fmt.Sprintf("the journal has reached journal.maxBytes, most of it are known objects, last states and dead letters, "+
			"and sink %q is the furthest behind", slowest), "it must catch up, or journal.maxBytes grow"
	}
	return fmt.Sprintf("the journal has reached journal.maxBytes with changes that sink %q has not taken", slowest),
		"it must catch up, or journal.maxBytes grow"
}

// CheckDeadLetterSpace returns nil while a dead letter more may be settled, else an error that says what to do: the lane which has
// one waits and asks again. What is on its way when the bound is reached is still taken, so the bound is exceeded by as
// much. It never waits for the store.
func (j *Journal) CheckDeadLetterSpace() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if full := joinRemedy(j.deadLettersFullReason()); full != "" {
		return errors.New(full)
	}
	return nil
}

// deadLettersFullReason says why no dead letter more fits, and what to do about it; "" when one does. The caller holds mu.
func (j *Journal) deadLettersFullReason() (reason, remedy string) {
	most, bytes := "", int64(0)
	for name, s := range j.sinks {
		if s.deadBytes > bytes || s.deadBytes == bytes && name < most {
			most, bytes = name, s.deadBytes
		}
	}
	if j.currentSizes().dead < j.opts.MaxDeadLetters {
		return "", ""
	}
	return fmt.Sprintf("the dead letters in the journal have reached journal.maxDeadLetters, most of them of sink %q", most),
		fmt.Sprintf("look at them with `exporter deadletter list`, stop the exporter and drop them with `exporter deadletter discard --sink %s`", most)
}

// slowestSink is the declared sink with the lowest cursor, beside those that do not count, and how far that is; "" where none is
// declared. A sink without a cursor has settled nothing.
func slowestSink(sinks map[string]sinkState, but ...string) (slowest string, low uint64) {
	for name, s := range sinks {
		if s.declared && (slowest == "" || s.cursor.Low < low || s.cursor.Low == low && name < slowest) && !slices.Contains(but, name) {
			slowest, low = name, s.cursor.Low
		}
	}
	return slowest, low
}

// updateConditions logs what is the case with the bounds, once each.
func (j *Journal) updateConditions() {
	j.mu.Lock()
	reason, remedy := j.blockedReason()
	letters, lettersRemedy := j.deadLettersFullReason()
	held, dead := j.logExtent.size()+j.currentSizes().total(), j.currentSizes().dead
	j.mu.Unlock()
	become := func(c *condition.Condition, fine, full condition.State, reason, remedy string, attrs ...any) {
		if reason == "" {
			full = fine
		}
		c.Update(full, reason, remedy, attrs...)
	}
	become(j.spaceCondition, stateHasSpace, stateFull, reason, remedy, "bytes", held, "maxBytes", j.opts.MaxBytes)
	become(j.deadLetterCondition, stateDeadLettersAccepted, stateDeadLettersFull, letters, lettersRemedy, "bytes", dead, "maxDeadLetters", j.opts.MaxDeadLetters)
}
