"""A 1 kHz loop: reads a value, computes, sends a command. Ctrl-C ends it.

    python loop_1khz.py

Both ends are on loopback here; with `Node.from_file("node.toml")` the same loop runs between two machines.
"""

import time

import tautline

PERIOD_S = 0.001
me = [{"name": "me", "ip": "127.0.0.1"}]
with tautline.Node(link="udp", address="127.0.0.1", neighbour=me) as node:
    print(node, flush=True)
    command, state = node.queuing(3201), node.sampling(3202, refresh_period=0.01)
    to_state = command.destination("me", 3202)
    cycles, missed, due = 0, 0, time.monotonic()
    try:
        while True:
            due += PERIOD_S
            command.send(to_state, cycles.to_bytes(8, "little"), priority=tautline.HIGHEST)
            sample = state.next(until=due)
            missed += sample is None or time.monotonic() > due
            cycles += 1
            if cycles % 1000 == 0:
                print(f"{cycles} cycles", flush=True)
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        print(f"{cycles} cycles, {missed} deadlines missed")
