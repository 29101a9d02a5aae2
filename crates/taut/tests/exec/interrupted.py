"""Sleeps in a loop and counts SIGINT; the second one ends it, as a signal does. Says when it was stopped."""

import os
import signal
import time

count = 0


def interrupted(_signal, _frame):
    global count
    count += 1
    print("interrupt", count, flush=True)
    if count == 2:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


signal.signal(signal.SIGINT, interrupted)
signal.signal(signal.SIGCONT, lambda *_: print("goes on", flush=True))
for k in range(100_000):
    time.sleep(0.002)
    if k == 50:
        print("began", flush=True)
