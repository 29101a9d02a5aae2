"""Numbered datagrams each 2 ms: `send ADDRESS` to ports 9201 and 9202 without end, `receive ADDRESS PORT` 300 of them."""

import socket
import sys
import time

made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if sys.argv[1] == "send":
    next_time = time.monotonic()
    for number in range(1_000_000_000):
        next_time += 0.002
        time.sleep(max(0, next_time - time.monotonic()))
        for port in (9201, 9202):
            made.sendto(b"%d" % number, (sys.argv[2], port))
else:
    made.bind((sys.argv[2], int(sys.argv[3])))
    numbers = [int(made.recv(100)) for _ in range(300)]
    is_whole = numbers == list(range(numbers[0], numbers[0] + 300))
    print(f"300 in order" if is_whole else numbers)
