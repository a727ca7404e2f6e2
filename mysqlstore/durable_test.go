package mysqlstore_test

import (
	"testing"

	"github.com/tierlock/tierlock"
	"github.com/tierlock/tierlock/mysqlstore"
)

// What the store says of its holds is what its user says of the database.
func TestDurable(t *testing.T) {
	if g := mysqlstore.New(nil, mysqlstore.Options{}).Guarantee(); g != tierlock.FencedOnly {
		t.Errorf("by default: %v", g)
	}
	if g := mysqlstore.New(nil, mysqlstore.Options{Durable: true}).Guarantee(); g != tierlock.Exclusive {
		t.Errorf("with Durable: %v", g)
	}
}
