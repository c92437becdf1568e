// Package credentials has what a client authenticates with, as the configuration names it: secrets, and the files of TLS.
// They are read at each use, so that what is rotated needs no restart.
//
// It opens files and no connection. No value shows a secret to a formatter. Safe for concurrent use.
package credentials
