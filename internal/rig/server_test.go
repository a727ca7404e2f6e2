package rig_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierlock/tierlock/internal/rig"
)

// A server that is down may find its port taken when it comes back: Start goes
// on until the port is free, and is not deceived by who answers there.
func TestPortTakenWhileDown(t *testing.T) {
	type server interface {
		Kill()
		Start()
		PID() int
	}
	for name, begin := range map[string]func(*testing.T) (s server, addr, dir string){
		"redis-server": func(t *testing.T) (server, string, string) {
			s := rig.Redis(t)
			return s, s.Addr, s.Dir
		},
		"mariadbd": func(t *testing.T) (server, string, string) {
			s := rig.MariaDB(t)
			return s, s.Addr, s.Dir
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.NoLeak(t)
			s, addr, dir := begin(t)
			s.Kill()
			before := s.PID()
			ln, err := net.Listen("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			done := make(chan bool)
			go func() {
				defer close(done)
				s.Start() // a failure of it ends this goroutine and fails the test
			}()
			rig.Eventually(t, soon, "the server told that its port is taken", func() bool {
				log, err := os.ReadFile(filepath.Join(dir, "rig.log"))
				return err == nil && strings.Contains(string(log), "Address already in use")
			})
			select {
			case <-done:
				t.Error("Start returned while the port was taken")
			default:
			}
			ln.Close()
			<-done
			if s.PID() == before {
				t.Error("no new process was started")
			}
			dial(t, addr)
		})
	}
}
