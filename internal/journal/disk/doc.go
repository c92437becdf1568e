// Package disk is the journal's access to the disk: private files ([Private]), writes that wait for space instead of failing
// ([SpaceFS]), a directory locked by one process ([Lock], [LockShared]), reading without a trace ([ReadOnly]), and the
// record of what was acknowledged ([AckFile]). It gives no meaning to stored bytes.
package disk
