//go:build unix

package report_test

import (
	"testing"

	"github.com/tierlock/tierlock/bench/internal/report"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   report.Spread
		text   string
	}{
		{nil, report.Spread{}, "–"},
		{[]float64{3}, report.Spread{N: 1, Median: 3, Min: 3, Max: 3}, "3.00 (3.00–3.00)"},
		{[]float64{9, 1, 2}, report.Spread{N: 3, Median: 2, Min: 1, Max: 9}, "2.00 (1.00–9.00)"},
		{[]float64{4, 1, 3, 2}, report.Spread{N: 4, Median: 2.5, Min: 1, Max: 4}, "2.50 (1.00–4.00)"},
	} {
		if got := report.SpreadOf(c.values); got != c.want || got.String() != c.text {
			t.Errorf("spread of %v: %+v, %q; want %+v, %q", c.values, got, got, c.want, c.text)
		}
	}
}

// The machine was four times as slow in the second round, and the ratio is none
// the less the same.
func TestRatiosAreTakenWithinARound(t *testing.T) {
	subject := map[int]float64{0: 80, 1: 20, 2: 100, 3: 7, 5: 1}
	other := map[int]float64{0: 100, 1: 25, 2: 50, 4: 9, 5: 0}
	got := report.Ratios(subject, other)
	if want := (report.Spread{N: 3, Median: 0.8, Min: 0.8, Max: 2}); got != want {
		t.Errorf("ratios %+v, want %+v: without the rounds of one side, and the one in which nothing was done", got, want)
	}
}
