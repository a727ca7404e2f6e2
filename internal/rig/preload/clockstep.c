// Preloaded into a server: shifts its wall clock by the nanoseconds that stand
// in the file named by RIG_CLOCK, which the test changes while the server runs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;
static __thread int64_t seen;  // the offset at this thread's last look at the clock
static __thread int looked;
static int (*wait_until)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

__attribute__((constructor)) static void attach(void) {
  *(void **)&wait_until = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  const char *name = getenv("RIG_CLOCK");
  int fd = name ? open(name, O_RDONLY) : -1;
  void *p = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED || !wait_until) _exit(97);  // never run on the real clock unnoticed
  offset = p;
  close(fd);
}

int clock_gettime(clockid_t id, struct timespec *ts) {
  int r = syscall(SYS_clock_gettime, id, ts);
  if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) && offset) {
    seen = *offset;
    looked = 1;
    int64_t ns = ts->tv_sec * 1000000000LL + ts->tv_nsec + seen;
    ts->tv_sec = ns / 1000000000;
    ts->tv_nsec = ns % 1000000000;
  }
  return r;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
  struct timespec ts;
  (void)tz;
  if (clock_gettime(CLOCK_REALTIME, &ts) != 0) return -1;
  tv->tv_sec = ts.tv_sec;
  tv->tv_usec = ts.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  if (out) *out = ts.tv_sec;
  return ts.tv_sec;
}

// The deadline was counted from the clock above, and the kernel waits by its
// own. Unchanged, a wait of a second would last the offset longer, or no time at
// all. A wait that has begun does not notice a step, and one that is about to begin,
// its deadline counted before the step, does not either: after a step back it would
// last the offset longer. (No server here has conditions on the monotonic clock, by
// pthread_condattr_setclock.)
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  if (!offset) return wait_until(cond, mutex, until);
  // Not in nanoseconds altogether: "for ever" would not fit.
  int64_t back = looked ? seen : *offset;
  struct timespec real = {until->tv_sec - back / 1000000000, until->tv_nsec - back % 1000000000};
  if (real.tv_nsec < 0) real.tv_sec--, real.tv_nsec += 1000000000;
  if (real.tv_nsec >= 1000000000) real.tv_sec++, real.tv_nsec -= 1000000000;
  if (real.tv_sec < 0) real.tv_sec = 0;
  return wait_until(cond, mutex, &real);
}
