package tests_test

import (
	"testing"

	"github.com/tierlock/tierlock/internal/rig"
)

func TestMain(m *testing.M) {
	rig.Main(m, map[string]func(args []string){
		"peer":    runPeer,
		"relay":   runRelay,
		"swarm":   runSwarm,
		"chaos":   runChaos,
		"chain":   runChainChaos,
		"figures": runFigures,
	})
}
