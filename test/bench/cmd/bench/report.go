package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// report is a whole run.
type report struct {
	Objects      int           `json:"objects"`
	Changes      int           `json:"changes"`
	Seconds      int           `json:"secondsAtRate"`
	Seed         uint64        `json:"seed"`
	ObjectBytes  int           `json:"averageObjectBytes"`
	CPUs         int           `json:"cpus"`
	Go           string        `json:"go"`
	FsyncMicros  float64       `json:"fsyncMicros"` // of 4 KiB in the work directory, the median
	Costs        []costs       `json:"costs,omitempty"`
	Measurements []measurement `json:"measurements,omitempty"` // of one system alone
	Shaping      *shaping      `json:"shaping,omitempty"`
	Replicated   *replicated   `json:"replicated,omitempty"`
	Start        *startup      `json:"start,omitempty"`
	Missed       []string      `json:"missed,omitempty"` // bars that were not met
}

// judge compares with the bars.
func (r *report) judge() {
	for i := range r.Costs {
		r.Missed = append(r.Missed, r.Costs[i].missed()...)
	}
	if r.Start != nil {
		r.Missed = append(r.Missed, r.Start.missed()...)
	}
	if r.Shaping != nil {
		r.Missed = append(r.Missed, r.Shaping.missed()...)
	}
	if r.Replicated != nil {
		r.Missed = append(r.Missed, r.Replicated.missed()...)
	}
	for _, m := range r.Measurements {
		if d := m.Delivered; m.System == "exporter" && !d.Complete() {
			r.Missed = append(r.Missed, fmt.Sprintf("the exporter's records: %d lost, %d out of order, %d wrong, %d control records",
				d.Lost, d.OutOfOrder, d.Wrong, d.Control))
		}
	}
}

// print writes the report for people.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%d objects of %d bytes on average, then %d changes (seed %d); %d CPUs shared with server and broker, %s, fsync %.0f µs\n\n",
		r.Objects, r.ObjectBytes, r.Changes, r.Seed, r.CPUs, r.Go, r.FsyncMicros)
	if len(r.Costs) > 0 {
		fmt.Fprintln(w, r.table())
	}
	if len(r.Measurements) > 0 {
		r.printAlone(w)
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
}

// printAlone writes what one system alone did.
func (r *report) printAlone(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	r.row(t, "", func(m measurement) string { return m.System })
	r.row(t, "changes/s", func(m measurement) string { return fmt.Sprintf("%.0f", m.PerSecond) })
	r.row(t, "CPU µs per change", func(m measurement) string { return fmt.Sprintf("%.1f", m.CPUMicros) })
	r.row(t, "p50 ms", func(m measurement) string { return fmt.Sprintf("%.2f", m.P50) })
	r.row(t, "p99 ms", func(m measurement) string { return fmt.Sprintf("%.2f", m.P99) })
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
