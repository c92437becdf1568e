package history

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// Moment is a point in the past: a time, or behind the change with a resourceVersion. The zero value is none.
type Moment struct {
	Time    time.Time
	Version string
}

// IsZero reports whether there is no moment.
func (m Moment) IsZero() bool { return m.Time.IsZero() && m.Version == "" }

// IsBefore reports whether the moment is before another one, as far as both are times, or both versions.
func (m Moment) IsBefore(o Moment) bool {
	return m.Version != "" && o.Version != "" && isHigher(o.Version, m.Version) || m.Version+o.Version == "" && !m.IsZero() && m.Time.Before(o.Time)
}

// String returns the moment as [ParseMoment] reads it.
func (m Moment) String() string {
	if m.Version != "" {
		return "rv:" + m.Version
	}
	return formatTime(m.Time)
}

// formatTime writes a time for people; it can be passed back.
func formatTime(t time.Time) string { return t.Local().Format("2006-01-02T15:04:05.000Z07:00") }

// layouts are how a time may be written. Those without a zone are of the local one, and those without a date of the last day
// that had it.
var layouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly}

var clockLayouts = []string{"15:04:05", "15:04"}

// ParseMoment reads a moment: a time (RFC 3339, a date, 15:04), how long ago (30m, 2h, 3d), or a resourceVersion (rv:4711,
// or digits alone).
func ParseMoment(text string, now time.Time) (Moment, error) {
	version := strings.TrimPrefix(text, "rv:")
	if resourceversion.IsOrdered(version) {
		return Moment{Version: version}, nil
	}
	if text == "now" {
		return Moment{Time: now}, nil
	}
	if ago, ok := parseAgo(text); ok {
		return Moment{Time: now.Add(-ago)}, nil
	}
	for _, layout := range layouts {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return Moment{Time: t}, nil
		}
	}
	for _, layout := range clockLayouts {
		if c, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			t := time.Date(now.Year(), now.Month(), now.Day(), c.Hour(), c.Minute(), c.Second(), 0, now.Location())
			if t.After(now) {
				t = t.AddDate(0, 0, -1)
			}
			return Moment{Time: t}, nil
		}
	}
	return Moment{}, fmt.Errorf("%q is no moment: expected a time (2026-01-02T15:04:05Z, 2026-01-02, 15:04), how long ago (30m, 2h, 3d), "+
		"or a resourceVersion (rv:4711)", text)
}

// parseAgo reads a duration, which may be in days.
func parseAgo(text string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err == nil
	}
	ago, err := time.ParseDuration(text)
	return ago, err == nil && ago >= 0
}
