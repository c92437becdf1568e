// Package top shows in a terminal what the status page of a running exporter shows: what is wrong, the pipeline and its
// rates.
//
// [Run] asks the admin server for an [admin.Overview] regularly and draws it over the whole screen, on the terminal's second
// screen, so that what was there before is there again at the end. It takes no keys but ^C.
package top
