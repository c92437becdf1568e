// Package verify compares the records that arrived in the topics with the corpus they came from: every state of every
// object must be there, no two records of an object may be in the wrong order, and nothing else may be there.
//
// It receives one record at a time and keeps a bit of memory for each entry of the corpus, not the records.
package verify
