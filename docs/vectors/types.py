#!/usr/bin/env python3
"""Checks wire/types.jsonl, and the typed frames of wire/ethernet.jsonl, by what docs/wire.md says and nothing else."""

import json
import pathlib
import sys

WIRE = pathlib.Path(__file__).parent / "wire"
TYPE_BYTE_AT = 14 + 11


def fingerprint(text):
    """64-bit FNV-1a of the text; 1 in place of 0."""
    number = 0xCBF29CE484222325
    for byte in text.encode("ascii"):
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return max(number, 1)


def vectors(name):
    """The vectors of a file."""
    return [json.loads(line) for line in (WIRE / name).read_text().splitlines()]


def main():
    """Checks all vectors; the exit status says whether all are answered as expected."""
    wrong = 0
    types = vectors("types.jsonl")
    for vector in types:
        found = fingerprint(vector["text"])
        if (f"{found:016x}", found % 255 + 1) != (vector["fingerprint"], vector["type_byte"]):
            wrong += 1
            print(f"{vector['text']}: {found:016x}, type byte {found % 255 + 1}")
    for vector in vectors("ethernet.jsonl"):
        frame = bytes.fromhex(vector["frame"])
        at = TYPE_BYTE_AT + 4 * (frame[12:14] == b"\x81\x00")
        if vector["expect"]["answer"] == "accept" and frame[at] != vector["expect"]["type_byte"]:
            wrong += 1
            print(f"{vector['name']}: type byte {frame[at]}")
    print(f"{len(types)} types, {wrong} wrong")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
