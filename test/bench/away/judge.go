package away

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// readWithin bounds reading everything, which takes seconds.
const readWithin = 10 * time.Minute

// judge reads what the destination holds and compares it with what was fed: version n is the n-th change, and the next of
// its object is n+objects.
func (r *run) judge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	seen := make([]bool, r.report.Fed)
	newest := make([]int, objects)
	if err := r.server.read(ctx, func(id string) error { return r.see(id, seen, newest) }); err != nil {
		return err
	}
	for _, there := range seen {
		if !there {
			r.report.Missing++
		}
	}
	return nil
}

// see notes one message by its ID, cluster/uid/version/type.
func (r *run) see(id string, seen []bool, newest []int) error {
	parts := strings.Split(id, "/")
	if len(parts) != 4 {
		return fmt.Errorf("the destination holds %q", id)
	}
	n, err := strconv.Atoi(parts[2])
	if err != nil || n >= len(seen) {
		return fmt.Errorf("the destination holds %q, of %d changes", id, len(seen))
	}
	if seen[n] {
		r.report.Duplicates++
	}
	seen[n] = true
	object := n % objects
	if n < newest[object] {
		r.report.StepsBack++
	}
	newest[object] = n
	return nil
}
