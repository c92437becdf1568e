// Package nearest finds what a misspelt name was meant to be.
package nearest
