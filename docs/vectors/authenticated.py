#!/usr/bin/env python3
"""Checks wire/authenticated.jsonl with Python's `cryptography`, by what docs/wire.md says and nothing else.

A receiver in another language can follow it line by line. It keeps no state, so it answers "replayed" only for frames
that were sent before the port was open.
"""

import json
import pathlib
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

AUTHENTICATED = 0x02
TRAILER_BYTES = 36
CIPHERS = {"aes-128-gcm": (1, 16, AESGCM), "chacha20-poly1305": (2, 32, ChaCha20Poly1305)}


def station(address):
    """Form and address: 1 and a MAC address, or 2, an IPv4 address and two zeros."""
    if ":" in address:
        return b"\1" + bytes.fromhex(address.replace(":", ""))
    return b"\2" + bytes(int(part) for part in address.split(".")) + bytes(2)


def answer(vector):
    """What a receiver makes of a frame."""
    header, payload = bytes.fromhex(vector["header"]), bytes.fromhex(vector["payload"])
    now, opened, tolerance = (int(vector[key], 16) for key in ("now", "opened", "tolerance"))
    if not header[5] & AUTHENTICATED:
        return {"error": "unprotected"}
    if len(payload) < TRAILER_BYTES:
        return {"error": "cut"}
    message, trailer = payload[:-TRAILER_BYTES], payload[-TRAILER_BYTES:]
    encrypted, epoch, run = bool(trailer[0] & 1), trailer[2:4], trailer[4:12]
    time, tag = trailer[12:20], trailer[20:]
    if int.from_bytes(epoch, "big") != vector["epoch"]:
        return {"error": "unknown_epoch"}
    if abs(int.from_bytes(time, "big") - now) > tolerance:
        return {"error": "untimely"}
    if int.from_bytes(time, "big") <= opened:
        return {"error": "replayed"}
    number, key_bytes, cipher = CIPHERS[vector["cipher"]]
    source, destination = station(vector["source"]), station(vector["destination"])
    info = b"tautline frame 1" + bytes([number]) + epoch + run + source + header[8:10]
    key = HKDFExpand(SHA256(), 32, info).derive(bytes.fromhex(vector["secret"]))[:key_bytes]
    covered = header + bytes([trailer[0] & 1, 0]) + trailer[2:20] + source + destination[1:]
    hidden = message if encrypted else b""
    try:
        opened = cipher(key).decrypt(bytes(4) + time, hidden + tag, covered if encrypted else covered + message)
    except InvalidTag:
        return {"error": "forged"}
    message = opened if encrypted else message
    return {"message": message.hex(), "encrypted": encrypted, "run": run.hex(), "time": time.hex()}


def main():
    """Checks all vectors; the exit status says whether all are answered as expected."""
    path = pathlib.Path(__file__).parent / "wire" / "authenticated.jsonl"
    wrong = 0
    vectors = [json.loads(line) for line in path.read_text().splitlines()]
    for vector in vectors:
        found = answer(vector)
        if found != vector["expect"]:
            wrong += 1
            print(f"{vector['name']}: {found}, expected {vector['expect']}")
    print(f"{len(vectors)} vectors, {wrong} wrong")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
