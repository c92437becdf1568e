// Package exit says with which code the process ends because of an error.
package exit
