package localstore

// Size is how many keys the space holds, on its map and on its heap, and how
// many are watched.
func (s *Space) Size() (entries, heap, watched int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries), len(s.expiry), len(s.watches)
}

// Ticking says whether the space's timer runs.
func (s *Space) Ticking() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.armed != 0
}

// Stall makes every operation wait until the function that it gives is called.
func (s *Space) Stall() (resume func()) {
	s.mu.Lock()
	return s.mu.Unlock
}
