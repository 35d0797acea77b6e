/* Moves the clock of the process that loads it (LD_PRELOAD) by HOLDFAST_CLOCK_MOVED seconds. The
 * monotonic clock, by which timeouts are measured, stays as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long moved(void) {
	static long seconds;
	static int known;
	if (!known) {
		const char *text = getenv("HOLDFAST_CLOCK_MOVED");
		seconds = text ? atol(text) : 0;
		known = 1;
	}
	return seconds;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
	static int (*real)(struct timeval *, void *);
	if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
	int result = real(tv, zone);
	if (result == 0 && tv) tv->tv_sec += moved();
	return result;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
	static int (*real)(clockid_t, struct timespec *);
	if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	int result = real(id, ts);
	if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) ts->tv_sec += moved();
	return result;
}

time_t time(time_t *to) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (to) *to = ts.tv_sec;
	return ts.tv_sec;
}
