// Package report makes tables and verdicts out of results.
package report

import (
	"fmt"
	"slices"
)

// Spread is the median of N values and how far they lie around it.
type Spread struct {
	N                int
	Median, Min, Max float64
}

// SpreadOf is the spread of the values; of none it is zero.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (v[len(v)/2-1] + mid) / 2
	}
	return Spread{N: len(v), Median: mid, Min: v[0], Max: v[len(v)-1]}
}

// Ratios divides within each round and then takes the spread of the ratios:
// what else the machine does changes from round to round and meets both sides
// of one. Rounds in which a side is missing or got nothing done are left out.
func Ratios(subject, other map[int]float64) Spread {
	var ratios []float64
	for round, s := range subject {
		if o := other[round]; o > 0 {
			ratios = append(ratios, s/o)
		}
	}
	return SpreadOf(ratios)
}

// String is for ratios and other small numbers.
func (s Spread) String() string { return s.format("%.2f") }

func (s Spread) whole() string { return s.format("%.0f") }

func (s Spread) format(number string) string {
	if s.N == 0 {
		return "–"
	}
	return fmt.Sprintf(number+" ("+number+"–"+number+")", s.Median, s.Min, s.Max)
}
