"""A controller of one's own at 1 kHz: `own_loop.py FILE CYCLES`, against `loop_motor`."""

import struct
import sys

import tautline

with tautline.Node.from_file(sys.argv[1]) as node:
    print(node, flush=True)
    states, commands = node.sampling("state"), node.queuing("command")
    motor = commands.destination("motor", 8)
    cycle = tautline.Cycle(0.001, fifo_priority=80)
    for _ in range(int(sys.argv[2])):
        cycle.wait()
        state = states.read()
        if state is not None and state.valid:
            position, speed = struct.unpack("<dd", state.data)
            force = struct.pack("<d", -100 * position - 20 * speed)
            commands.send(motor, force, priority=tautline.HIGHEST)
    print(cycle.report)
