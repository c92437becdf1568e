// Package disk is how the journal uses a disk: private files ([Private]), writes that wait for space instead of failing
// ([SpaceFS]), a directory that one process has ([Lock], [LockShared]), reading without a trace ([ReadOnly]), and the file
// that says what was acknowledged ([AckFile]). It knows nothing of what is stored.
package disk
