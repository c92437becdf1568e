package main

import (
	"slices"
	"testing"
)

func TestRatiosAreOfTheSameRound(t *testing.T) {
	if got := ratios([]float64{1, 6, 9}, []float64{2, 3, 9}); !slices.Equal(got, []float64{0.5, 2, 1}) {
		t.Errorf("got %v", got)
	}
}

func TestTheMedianLeavesItsValuesAlone(t *testing.T) {
	values := []float64{9, 1, 5}
	if got := median(values); got != 5 || !slices.Equal(values, []float64{9, 1, 5}) {
		t.Errorf("got %v of %v", got, values)
	}
	if got := median([]float64{1, 2}); got != 2 {
		t.Errorf("got %v", got)
	}
}
