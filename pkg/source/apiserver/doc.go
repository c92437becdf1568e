// Package apiserver sends single requests to the API server: discovery, a page of a list, a watch. It reads responses as raw
// bytes, in batches of the events that have arrived, and classifies failures by what they mean for the history of a scope
// ([Classify]).
//
// It never retries and keeps no state of a scope: both belong to package source.
package apiserver
