package rig_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierlock/tierlock/internal/rig"
)

// waiter counts a deadline of a tenth of a second from its clock, waits for a line,
// and then until that deadline.
const waiter = `
#include <pthread.h>
#include <stdio.h>
#include <time.h>
int main(void) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
  struct timespec until;
  char line[8];
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 100000000;
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  puts("counted");
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) return 1;
  pthread_mutex_lock(&mutex);
  while (!pthread_cond_timedwait(&cond, &mutex, &until)) {}
  puts("over");
  return 0;
}
`

// A step between the look at the clock from which a wait is counted and its begin makes
// the wait no longer.
func TestClockStepBeforeAWait(t *testing.T) {
	for what, step := range map[string]time.Duration{"back": -time.Hour, "forward": time.Hour} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			source, program := filepath.Join(dir, "waiter.c"), filepath.Join(dir, "waiter")
			if err := os.WriteFile(source, []byte(waiter), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("cc", "-o", program, source, "-lpthread").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			clock, env := rig.NewWallClock(t)
			cmd := exec.CommandContext(t.Context(), program) // killed at the end of the test
			cmd.Env = append(os.Environ(), env...)
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			lines := bufio.NewReader(stdout)
			if line, err := lines.ReadString('\n'); err != nil || line != "counted\n" {
				t.Fatalf("%q, %v", line, err)
			}
			clock.Step(step)
			if _, err := io.WriteString(stdin, "go\n"); err != nil {
				t.Fatal(err)
			}
			over := make(chan string, 1)
			go func() {
				line, _ := lines.ReadString('\n')
				over <- strings.TrimSpace(line)
			}()
			select {
			case line := <-over:
				if line != "over" {
					t.Errorf("it said %q", line)
				}
			case <-time.After(20 * time.Second):
				t.Error("the wait goes on")
			}
		})
	}
}
