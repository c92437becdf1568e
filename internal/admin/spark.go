package admin

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// The size of a sparkline, in units of its own.
const sparkWidth, sparkHeight = 120.0, 24.0

// sparkline is how a rate went, as it is drawn and described.
type sparkline struct {
	Points       string  // of the line, which ends at the right
	PeakX, PeakY float64 // where the peak is
	Newest, Peak float64 // rates
	Top          float64 // the rate at the upper edge; the lower edge is 0
	Span         string  // how far the line goes back
}

// newSparkline draws the rates of a stage, the newest last; nil if all are 0, because a flat line shows nothing. The scale
// is a round number, so that lines can be compared, and keep their form while the peak varies.
func newSparkline(rates []float64) *sparkline {
	peak := slices.Max(append([]float64{0}, rates...))
	if peak == 0 {
		return nil
	}
	s := &sparkline{
		Newest: rates[len(rates)-1], Peak: peak, Top: roundUp(peak),
		Span: strings.NewReplacer("m0s", " min", "s", " s").Replace((time.Duration(len(rates)) * sampleEvery).String()),
	}
	var points []string
	for i, rate := range rates {
		x, y := sparkWidth-float64(len(rates)-1-i)*sparkWidth/(samplesKept-1), sparkHeight-1-rate/s.Top*(sparkHeight-2)
		points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
		if rate == peak {
			s.PeakX, s.PeakY = x, y
		}
	}
	s.Points = strings.Join(points, " ")
	return s
}

// roundUp returns the next of 1, 2, 5, 10, 20, 50 and so on.
func roundUp(rate float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(rate)))
	for _, step := range []float64{1, 2, 5} {
		if rate <= step*unit {
			return step * unit
		}
	}
	return 10 * unit
}
