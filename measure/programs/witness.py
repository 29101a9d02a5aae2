"""Whether a CPU runs its threads: `taskset -c CPU chrt -f 99 python3 witness.py`.

It only sleeps, for 2 ms at a time. When it woke more than half a millisecond late, the machine stood still, or its
kernel let no thread run: it prints from when to when, in nanoseconds of the monotonic clock.
"""

import time

PERIOD_NS = 2_000_000
LATE_NS = 500_000


def main():
    while True:
        due = time.monotonic_ns() + PERIOD_NS
        time.sleep(PERIOD_NS / 1e9)
        now = time.monotonic_ns()
        if now - due > LATE_NS:
            print(due, now, flush=True)


if __name__ == "__main__":
    main()
