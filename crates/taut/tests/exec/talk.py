"""Speaks UDP with Python's socket module and with asyncio: `serve ADDRESS`, `ask ADDRESS`, `bind ADDRESS`; and by packet
sockets: `serve-frames INTERFACE`, `ask-frames INTERFACE`, `packets INTERFACE`."""

import asyncio
import select
import socket
import struct
import sys

BLOCKING, WAITING, LOOP = 9100, 9101, 9102
COUNT = 20
ETHERCAT = 0x88A4


def bound(address, port):
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, port))
    return made


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, source):
        self.transport.sendto(data, source)


class Asker(asyncio.DatagramProtocol):
    def __init__(self, answered):
        self.answered = answered

    def connection_made(self, transport):
        self.transport = transport
        self.answers = []
        transport.sendto(b"0")

    def datagram_received(self, data, source):
        self.answers.append(int(data))
        if len(self.answers) == COUNT:
            self.answered.set_result(self.answers)
        else:
            self.transport.sendto(b"%d" % len(self.answers))


async def serve_loop(address):
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Echo, local_addr=(address, LOOP))
    # Two more sockets, of which one is polled and one is read as it comes.
    sockets = [bound(address, port) for port in (BLOCKING, WAITING)]

    def answer(one):
        data, source = one.recvfrom(2000)
        one.sendto(data, source)

    for one in sockets:
        loop.add_reader(one.fileno(), answer, one)
    await asyncio.sleep(60)


async def ask_loop(address):
    loop = asyncio.get_running_loop()
    answered = loop.create_future()
    await loop.create_datagram_endpoint(lambda: Asker(answered), remote_addr=(address, LOOP))
    answers = await asyncio.wait_for(answered, 5)
    print(f"asyncio: {len(answers)} answers, in order: {answers == list(range(COUNT))}")


def ask(address):
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(0.5)
    for number in range(COUNT):
        made.sendto(b"%d" % number, (address, BLOCKING))
        data, source = made.recvfrom(2000)
        assert int(data) == number and source == (address, BLOCKING)
    made.close()
    print(f"socket: {COUNT} answers")
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.connect((address, WAITING))
    for number in range(COUNT):
        made.send(b"x" * number * 100)
        assert select.select([made], [], [], 2)[0] == [made]
        assert len(made.recv(2000)) == number * 100
    try:
        made.recv(2000)
    except BlockingIOError as error:
        print(f"select: {COUNT} answers, then {error.strerror}")
    asyncio.run(ask_loop(address))


def packets(interface):
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERCAT))
    made.bind((interface, ETHERCAT))
    return made


def serve_frames(interface):
    made = packets(interface)
    while True:
        frame, (_, protocol, _, hardware, source) = made.recvfrom(2000)
        assert protocol == ETHERCAT and hardware == 1
        made.send(source + frame[6:])


def ask_frames(interface):
    made = packets(interface)
    made.settimeout(0.5)
    own = made.getsockname()[4]
    for number in range(COUNT):
        frame = b"\xff" * 6 + own + struct.pack("!H", ETHERCAT) + b"%d" % number * 10
        made.send(frame)
        answer, (name, _, kind, _, source) = made.recvfrom(2000)
        assert answer[12:] == frame[12:] and source == own and name == interface and kind == socket.PACKET_HOST
    print(f"frames: {COUNT} answers")


if sys.argv[1] == "serve":
    asyncio.run(serve_loop(sys.argv[2]))
elif sys.argv[1] == "ask":
    ask(sys.argv[2])
elif sys.argv[1] == "serve-frames":
    serve_frames(sys.argv[2])
elif sys.argv[1] == "ask-frames":
    ask_frames(sys.argv[2])
elif sys.argv[1] == "packets":
    packets(sys.argv[2]).close()
else:
    bound(sys.argv[2], BLOCKING).close()
