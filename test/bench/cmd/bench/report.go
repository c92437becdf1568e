package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// bar is the largest part of the baseline's CPU time and memory that the exporter may take.
const bar = 1.0 / 5

// report is a whole run.
type report struct {
	Objects      int           `json:"objects"`
	Changes      int           `json:"changes"`
	Seed         uint64        `json:"seed"`
	ObjectBytes  int           `json:"averageObjectBytes"`
	CPUs         int           `json:"cpus"`
	Go           string        `json:"go"`
	FsyncMicros  float64       `json:"fsyncMicros"` // of 4 KiB in the work directory, the median
	Measurements []measurement `json:"measurements"`
	Ratios       *ratios       `json:"ratios,omitempty"`
	Shaping      *shaping      `json:"shaping,omitempty"`
	Replicated   *replicated   `json:"replicated,omitempty"`
	Start        *startup      `json:"start,omitempty"`
	Missed       []string      `json:"missed,omitempty"` // bars that were not met
}

// ratios are the exporter's numbers divided by the baseline's.
type ratios struct {
	CPUPerChange float64 `json:"cpuPerChange"`
	CPUTotal     float64 `json:"cpuTotal"`
	PeakRSS      float64 `json:"peakRSS"`
	SyncRSS      float64 `json:"peakRSSAfterSync"`
	PerSecond    float64 `json:"changesPerSecond"`
}

// find returns the measurement of a system, or nil.
func (r *report) find(name string) *measurement {
	for i := range r.Measurements {
		if r.Measurements[i].System == name {
			return &r.Measurements[i]
		}
	}
	return nil
}

// judge computes the ratios and compares with the bars.
func (r *report) judge() {
	ours, theirs := r.find("exporter"), r.find("baseline")
	if r.Start != nil {
		r.Missed = append(r.Missed, r.Start.missed()...)
	}
	if r.Shaping != nil {
		r.Missed = append(r.Missed, r.Shaping.missed()...)
	}
	if r.Replicated != nil {
		r.Missed = append(r.Missed, r.Replicated.missed()...)
	}
	if ours != nil && !ours.Delivered.Complete() {
		d := ours.Delivered
		r.Missed = append(r.Missed, fmt.Sprintf("the exporter's records: %d lost, %d out of order, %d wrong, %d control records",
			d.Lost, d.OutOfOrder, d.Wrong, d.Control))
	}
	if ours == nil || theirs == nil {
		return
	}
	r.Ratios = &ratios{
		CPUPerChange: ours.CPUMicros / theirs.CPUMicros,
		CPUTotal:     ours.Total.CPU / theirs.Total.CPU,
		PeakRSS:      float64(ours.Total.PeakRSS) / float64(theirs.Total.PeakRSS),
		SyncRSS:      float64(ours.Sync.PeakRSS) / float64(theirs.Sync.PeakRSS),
		PerSecond:    ours.PerSecond / theirs.PerSecond,
	}
	if r.Ratios.CPUPerChange > bar {
		r.Missed = append(r.Missed, fmt.Sprintf("CPU per change: %.3f of the baseline's, at most %.3f", r.Ratios.CPUPerChange, bar))
	}
	if r.Ratios.PeakRSS > bar {
		r.Missed = append(r.Missed, fmt.Sprintf("peak RSS: %.3f of the baseline's, at most %.3f", r.Ratios.PeakRSS, bar))
	}
}

// print writes the report for people.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%d objects of %d bytes on average, then %d changes (seed %d); %d CPUs shared with server and broker, %s, fsync %.0f µs\n\n",
		r.Objects, r.ObjectBytes, r.Changes, r.Seed, r.CPUs, r.Go, r.FsyncMicros)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	r.row(t, "", func(m measurement) string { return m.System })
	r.row(t, "changes/s", func(m measurement) string { return fmt.Sprintf("%.0f", m.PerSecond) })
	r.row(t, "CPU µs per change", func(m measurement) string { return fmt.Sprintf("%.1f", m.CPUMicros) })
	r.row(t, "CPU s, whole run", func(m measurement) string { return fmt.Sprintf("%.2f", m.Total.CPU) })
	r.row(t, "initial sync, s", func(m measurement) string { return fmt.Sprintf("%.2f", m.Sync.Seconds) })
	r.row(t, "initial sync, CPU s", func(m measurement) string { return fmt.Sprintf("%.2f", m.Sync.CPU) })
	r.row(t, "peak RSS MiB after sync", func(m measurement) string { return mebibytes(m.Sync.PeakRSS) })
	r.row(t, "peak RSS MiB", func(m measurement) string { return mebibytes(m.Total.PeakRSS) })
	r.row(t, "records", func(m measurement) string { return fmt.Sprint(m.Delivered.Records) })
	r.row(t, "lost", func(m measurement) string { return fmt.Sprint(m.Delivered.Lost) })
	r.row(t, "duplicates", func(m measurement) string { return fmt.Sprint(m.Delivered.Duplicates) })
	r.row(t, "out of order", func(m measurement) string { return fmt.Sprint(m.Delivered.OutOfOrder) })
	r.row(t, "wrong", func(m measurement) string { return fmt.Sprint(m.Delivered.Wrong) })
	r.row(t, "lists, streaming, watches", requests)
	_ = t.Flush() // to a terminal or a pipe; no other output is left
	fmt.Fprintln(w)
	for _, m := range r.Measurements {
		fmt.Fprintf(w, "%s: %s\n", m.System, m.Title)
		if m.Delivered.Reason != "" {
			fmt.Fprintf(w, "%s: first wrong record: %s\n", m.System, m.Delivered.Reason)
		}
	}
	if r.Start != nil {
		defer r.Start.print(w)
	}
	if r.Shaping != nil {
		defer r.Shaping.print(w)
	}
	if r.Replicated != nil {
		defer r.Replicated.print(w)
	}
	if q := r.Ratios; q != nil {
		fmt.Fprintf(w, "\nexporter : baseline   CPU per change %.3f (bar %.3f)   peak RSS %.3f (bar %.3f)   after sync %.3f   changes/s %.2f   CPU of the whole run %.3f\n",
			q.CPUPerChange, bar, q.PeakRSS, bar, q.SyncRSS, q.PerSecond, q.CPUTotal)
	}
}

func (r *report) row(w io.Writer, title string, cell func(measurement) string) {
	fmt.Fprintf(w, "%s\t", title)
	for _, m := range r.Measurements {
		fmt.Fprintf(w, "%s\t", cell(m))
	}
	fmt.Fprintln(w)
}

func mebibytes(n int64) string { return fmt.Sprintf("%.0f", float64(n)/(1<<20)) }

// requests sums what was asked of the API server over the resources.
func requests(m measurement) string {
	var lists, watchLists, watches int64
	for _, q := range m.Requests {
		lists, watchLists, watches = lists+q.Lists, watchLists+q.WatchLists, watches+q.Watches
	}
	return fmt.Sprintf("%d, %d, %d", lists, watchLists, watches)
}
