// Package attribution names the authenticated user behind a change, or says why it cannot.
//
// [Matcher] is the meaning, in one place and pure: changes and audit events go in, in any order and any number of times, and
// conclusions come out. It never concludes from time alone; where one identity does not remain, a change is unresolved, with
// a reason. The rules are those of docs/audit-trail.md. [Attributor] runs it between the journal, which holds the changes
// and the events until they are concluded, and the intakes of package audit.
//
// Who looks for a wrong name reads claim.go (which requests claim which change) and decide.go (which of them is believed),
// and writes the events and the change down as a transcript in testdata, which is a test at once.
//
//	join.go        what waits for each other, and for how long
//	packed.go      requests that no change has asked for
//	claim.go       the rules by which a request claims a change, or cannot have made it
//	decide.go      the one that is believed
//	guess.go       where guesses are wanted
//	state.go       what a body tells of bindings, evictions and deletions
//	memory.go      who asked for a delete, and how objects were; bounded
//	answers.go     when a version was there for certain; bounded
//	attributor.go  from the journal and the intakes into the join
//	conclude.go    and back into the journal, as record.go has it
//	load.go        what an earlier process waited with
//	lost.go        lost audit events, which gaps.go tells
//	wait.go        changes that are held back until they are named
package attribution
