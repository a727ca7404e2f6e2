package measure

import (
	"slices"
	"time"
)

// Latencies are the samples of one goroutine or, merged, of many.
type Latencies []time.Duration

// Merge joins and sorts samples.
func Merge(parts ...Latencies) Latencies {
	all := slices.Concat(parts...)
	slices.Sort(all)
	return all
}

// Quantile is the smallest sample that at least the fraction q of all samples
// does not exceed: 0.5 is the median, 1 the largest. The samples are sorted; of
// none it is 0.
func (l Latencies) Quantile(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	// Rounded up, but not for an error in the last digit of q.
	i := int(q*float64(len(l)) + 1 - 1e-9)
	return l[min(max(i, 1), len(l))-1]
}
