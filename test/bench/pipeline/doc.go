// Package pipeline starts the two ends of what measurements time: a real control plane, and an exporter that reads it.
package pipeline
