// Package journaltest makes changes for the tests of the journal, and sees whether files are left as they are.
package journaltest
