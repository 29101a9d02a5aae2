"""Speaks UDP with Python's socket module and with asyncio: `serve ADDRESS`, `ask ADDRESS`."""

import asyncio
import select
import socket
import sys

BLOCKING, WAITING, LOOP = 9100, 9101, 9102
COUNT = 20


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


if sys.argv[1] == "serve":
    asyncio.run(serve_loop(sys.argv[2]))
else:
    ask(sys.argv[2])
