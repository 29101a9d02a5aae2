"""Loops at 1 kHz over libraries of others: `loops.py KIND serve ADDRESS`, `loops.py KIND ask ADDRESS COUNT`.

KIND is asyncio, zmq, zenoh or soem; soem asks the sub-devices at the end of the interface ADDRESS. Prints for each
cycle when it was due and when its answer came, in nanoseconds of the monotonic clock; `lost` without an answer.
"""

import asyncio
import sys
import threading
import time

PERIOD_NS = 1_000_000
WARM_UP = 200
PORT = 5600
PAYLOAD = b"x" * 64
ANSWER_S = 1


def cycles(count):
    """Sleeps until each cycle is due, and yields that time. After a late answer the next cycle begins at once."""
    due = time.monotonic_ns() + 100 * PERIOD_NS
    for _ in range(WARM_UP + count):
        due += PERIOD_NS
        left = due - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
        yield due


def show(answers):
    print("\n".join(f"{due} {answered or 'lost'}" for due, answered in answers[WARM_UP:]))


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, source):
        self.transport.sendto(data, source)


class Ask(asyncio.DatagramProtocol):
    answered = None

    def datagram_received(self, data, source):
        if self.answered and not self.answered.done():
            self.answered.set_result(time.monotonic_ns())


async def asyncio_serve(address):
    await asyncio.get_running_loop().create_datagram_endpoint(Echo, local_addr=(address, PORT))
    await asyncio.Future()


async def asyncio_ask(address, count):
    loop = asyncio.get_running_loop()
    transport, ask = await loop.create_datagram_endpoint(Ask, remote_addr=(address, PORT))
    answers = []
    for due in cycles(count):
        ask.answered = loop.create_future()
        transport.sendto(PAYLOAD)
        try:
            answers.append((due, await asyncio.wait_for(ask.answered, ANSWER_S)))
        except asyncio.TimeoutError:
            answers.append((due, None))
    return answers


def zmq_socket(kind):
    import zmq

    made = zmq.Context().socket(getattr(zmq, kind))
    made.setsockopt(zmq.LINGER, 0)
    return made


def zmq_serve(address):
    link = zmq_socket("REP")
    link.bind(f"tcp://{address}:{PORT}")
    while True:
        link.send(link.recv())


def zmq_ask(address, count):
    link = zmq_socket("REQ")
    link.connect(f"tcp://{address}:{PORT}")
    answers = []
    for due in cycles(count):
        link.send(PAYLOAD)
        link.recv()
        answers.append((due, time.monotonic_ns()))
    return answers


def zenoh_session(side, address):
    import zenoh

    config = zenoh.Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("listen/endpoints", "[]")
    config.insert_json5(f"{side}/endpoints", f'["tcp/{address}:{PORT}"]')
    return zenoh.open(config)


def zenoh_serve(address):
    session = zenoh_session("listen", address)
    publisher = session.declare_publisher("pong")
    _subscriber = session.declare_subscriber("ping", lambda sample: publisher.put(sample.payload))
    threading.Event().wait()


def zenoh_ask(address, count):
    session = zenoh_session("connect", address)
    answered, at = threading.Event(), [0]

    def note(_sample):
        at[0] = time.monotonic_ns()
        answered.set()

    _subscriber = session.declare_subscriber("pong", note)
    publisher = session.declare_publisher("ping")
    time.sleep(0.5)
    answers = []
    for due in cycles(count):
        answered.clear()
        publisher.put(PAYLOAD)
        answers.append((due, at[0] if answered.wait(ANSWER_S) else None))
    session.close()
    return answers


def soem_ask(interface, count):
    import pysoem

    main = pysoem.Master()
    main.open(interface)
    if main.config_init() < 1:
        sys.exit("there is no sub-device")
    main.config_map()
    main.state_check(pysoem.SAFEOP_STATE, 50_000)
    main.state = pysoem.OP_STATE
    main.send_processdata()
    main.receive_processdata(2000)
    main.write_state()
    if main.state_check(pysoem.OP_STATE, 50_000) != pysoem.OP_STATE:
        sys.exit("the sub-devices do not come to OP")
    answers = []
    for number, due in enumerate(cycles(count)):
        for device in main.slaves:
            device.output = number.to_bytes(8, "little")
        main.send_processdata()
        counted = main.receive_processdata(2000)
        answered = time.monotonic_ns()
        answers.append((due, answered if counted == main.expected_wkc else None))
    main.close()
    return answers


def main():
    kind, side, address, *count = sys.argv[1:]
    work = globals()[f"{kind}_{side}"](address, *map(int, count))
    work = asyncio.run(work) if asyncio.iscoroutine(work) else work
    show(work)


if __name__ == "__main__":
    main()
