import sys

import tautline

file, peer = sys.argv[1:]
with tautline.Node.from_file(file) as node, node.queuing("hello") as port:
    port.send(port.destination(peer, 7, timeout=float("inf")), b"hello from Python")
    print(port.receive().data.decode())
