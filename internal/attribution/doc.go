// Package attribution names the authenticated user behind a change, or gives the reason why it cannot.
//
// [Matcher] holds the rules and is pure: changes and audited requests go in, in any order and any number of times, and
// resolutions come out. It never infers an author from time alone. If more than one identity remains, the change is
// unresolved, with a reason. docs/audit-trail.md states the rules. [Attributor] runs the matcher between the journal, which
// stores changes and events until they are resolved, and the intakes of package audit.
//
// To investigate a wrong author, read requests.go (which requests claim which change) and resolver.go (which claim is
// accepted), and add the events and the change as a transcript to testdata: every file there is a test. DESIGN.md has a map
// of the package.
package attribution
