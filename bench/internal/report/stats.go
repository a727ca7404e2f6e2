// Package report makes tables out of results.
package report

import "slices"

// Spread is a median and how far the values lie around it.
type Spread struct{ Median, Min, Max float64 }

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
	return Spread{Median: mid, Min: v[0], Max: v[len(v)-1]}
}

// Ratios divides within each round and then takes the spread of the ratios: what
// the machine does meanwhile changes from round to round and meets both. Rounds
// that only one side has are left out.
func Ratios(subject, other map[int]float64) Spread {
	var ratios []float64
	for round, s := range subject {
		if o, ok := other[round]; ok && o > 0 {
			ratios = append(ratios, s/o)
		}
	}
	return SpreadOf(ratios)
}
