// Package attribution names the authenticated user behind a change, or says why it cannot.
//
// [Join] is the meaning, in one place and pure: changes and audit events go in, in any order and any number of times, and
// conclusions come out. It never concludes from time alone; where one identity does not remain, a change is unresolved, with
// a reason. The rules are those of docs/audit-trail.md. [Attributor] runs it between the journal, which holds the changes
// and the events until they are concluded, and the intakes of package audit.
package attribution
