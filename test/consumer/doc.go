// Package consumer holds no code: its tests play random histories to the half of the exporter that decides what changed, and
// rebuild the cluster from what that wrote, by pkg/consumer.
package consumer
