//go:build !race

package degrade_test

const raceOn = false
