// Package process runs a server as a child process for tests, and sees to it that nothing is left behind.
//
// A child writes to a log file, is ready when a function of its owner returns nil, and ends by Stop or Kill, which both
// wait. It cannot outlive its parent: on Linux the kernel kills it when the parent ends in any way, also by a panic,
// a test timeout or SIGKILL, where no deferred function runs. Other systems have no such promise; there a child runs
// in a process group of its own and ends when its owner stops it.
//
// The package never restarts a child by itself: a server that dies is a finding, not something to hide.
package process
