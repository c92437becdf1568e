package main

import (
	"os"
	"path/filepath"
	"slices"
	"time"
)

// measureFsync returns the median time in microseconds that the disk takes to make 4 KiB durable. On a file system in
// memory it is near zero, and the exporter's journal costs less there than on a disk.
func measureFsync(dir string) (float64, error) {
	f, err := os.Create(filepath.Join(dir, "fsync"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	block := make([]byte, 4096)
	var times []time.Duration
	for range 21 {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return float64(times[len(times)/2].Nanoseconds()) / 1e3, nil
}
