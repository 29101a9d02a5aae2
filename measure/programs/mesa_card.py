"""Answers as a Mesa 7I92 card with the firmware HostMot2 does, by LBP16 over UDP: two I/O ports and a watchdog that
never bites. Outputs are read back as inputs. For LinuxCNC's driver hm2_eth, in tests and measurements.

    mesa_card.py INTERFACE [PRIORITY]
"""

import gc
import os
import socket
import struct
import sys

PORT = 27181
MTU = 1500
# LBP16: a command of 16 bits, little endian, then an address where bit 14 is set, then the data of a write.
WRITE, HAS_ADDRESS, INCREMENTS = 0x8000, 0x4000, 0x0080
HOSTMOT2, EEPROM, TIMER, CONTROL, INFO = 0, 2, 4, 6, 7
PACKETS = 8  # In CONTROL: datagrams received.
# HostMot2: where its parts lie in the card's memory.
COOKIE, IDROM, MODULES, PINS = 0x0100, 0x0400, 0x0040, 0x0200
PORTS, PORT_PINS = 2, 17
WATCHDOG, IO_PORT = 2, 3


def module(tag, instances, base, registers, multiple):
    """A module at the slow clock, with the first of both strides."""
    return struct.pack("<BBBBHBBI", tag, 0, 1, instances, base, registers, 0, multiple)


def hostmot2():
    memory = bytearray(1 << 16)

    def put(address, data):
        memory[address : address + len(data)] = data

    put(COOKIE, struct.pack("<I8sI", 0x55AACAFE, b"HOSTMOT2", IDROM))
    clocks, strides = (100_000_000, 200_000_000), (4, 64, 0x100, 4)
    sizes = (9, 144, PORTS, PORTS * PORT_PINS, PORT_PINS)
    put(IDROM, struct.pack("<3I8s11I", 3, MODULES, PINS, b"MESA7I92", *sizes, *clocks, *strides))
    put(IDROM + MODULES, module(WATCHDOG, 1, 0x0C00, 3, 0) + module(IO_PORT, PORTS, 0x1000, 5, 0x1F))
    put(IDROM + PINS, struct.pack("<BBBB", 0, 0, 0, IO_PORT) * (PORTS * PORT_PINS))
    return memory


def card(interface):
    """The card's memory spaces. Its hardware address is the interface's: the driver makes a fixed entry of it."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as link:
        link.bind((interface, 0))
        mac = link.getsockname()[4]
    spaces = {space: bytearray(1 << 8) for space in range(1, 8)}
    spaces[HOSTMOT2] = hostmot2()
    spaces[EEPROM][2:8] = mac[::-1]
    spaces[INFO][:4] = b"7I92"
    return spaces


def answer(spaces, packet):
    """Carries out the commands of a datagram; the data that they read."""
    said, at, address = bytearray(), 0, 0
    while at + 2 <= len(packet):
        (command,) = struct.unpack_from("<H", packet, at)
        at += 2
        if command & HAS_ADDRESS:
            if at + 2 > len(packet):
                break
            (address,) = struct.unpack_from("<H", packet, at)
            at += 2
        memory = spaces[command >> 10 & 7]
        item = 1 << (command >> 8 & 3)
        size = item * (command & 0x7F)
        end = address + (size if command & INCREMENTS else item)
        if end > len(memory):
            break
        if command & WRITE:
            data = packet[at : at + size]
            if len(data) < size:
                break
            memory[address:end] = data[address - end :]
            at += size
        else:
            data = memory[address:end]
            said += data if command & INCREMENTS else data * (size // item)
        address = end if command & INCREMENTS else address
    return said


def main():
    interface, *priority = sys.argv[1:]
    if priority:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(int(priority[0])))
    gc.disable()
    spaces = card(interface)
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.bind(("", PORT))
    print("ready", flush=True)
    received = 0
    while True:
        packet, peer = link.recvfrom(MTU)
        received = received + 1 & 0xFFFF
        struct.pack_into("<H", spaces[CONTROL], PACKETS, received)
        if said := answer(spaces, packet):
            link.sendto(said, peer)


if __name__ == "__main__":
    main()
