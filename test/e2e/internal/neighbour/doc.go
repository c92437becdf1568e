// Package neighbour has what an API server depends on and what falls ill in real clusters: an aggregated API server and a
// conversion webhook. Each can be broken and mended.
package neighbour
