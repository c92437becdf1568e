// Package apiserver sends single requests to the API server: what it serves, a list, a watch. It reads the answers as raw
// bytes, in batches of what has arrived, and says what a failure means for the history of a scope ([Classify]).
//
// It tries nothing again and keeps no state of a scope: that is for package source.
package apiserver
