"""The loop of a robot that sends its state over UDP and wants a command soon: awake when the state comes. The other
side is examples/robot_peer.rs.

    robot_loop.py 7000            the port to receive at
    robot_loop.py 7000 kernel     sleeps as the kernel does, for comparison
"""

import socket
import sys

import tautline

port = int(sys.argv[1]) if len(sys.argv) > 1 else 7000
is_awake = "kernel" not in sys.argv[2:]

udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", port))
awake = tautline.Awake(udp)
while not is_awake or awake.wait():  # sleeps, and is awake when the state comes
    state, robot = udp.recvfrom(1500)
    if not state:
        break
    udp.sendto(state, robot)  # compute the command here
print(awake.report)
