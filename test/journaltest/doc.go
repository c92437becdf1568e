// Package journaltest makes changes for the tests of the journal.
package journaltest
