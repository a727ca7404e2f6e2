package tierlock

// route is where a call about a lock goes.
type route struct {
	backend *backend
	place   Place
}

// at is where the lease of the hold is now.
func (h *hold) at() route { return route{backend: h.backend} }

// guarantee is what the hold is worth.
func (h *hold) guarantee() Guarantee { return h.backend.Guarantee() }
