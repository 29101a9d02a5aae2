"""A participant of Zenoh that knows nothing of Tautline: eclipse-zenoh from PyPI. Takes commands on standard input, one
JSON array a line, and writes what happens to standard output, one JSON object a line."""

import json
import sys
import threading
import time

import zenoh

LOCK = threading.Lock()
KEPT = []


def say(**what):
    with LOCK:
        print(json.dumps(what), flush=True)


def told(sample):
    attachment = sample.attachment
    return {
        "key": str(sample.key_expr),
        "deleted": sample.kind == zenoh.SampleKind.DELETE,
        "payload": sample.payload.to_bytes().hex(),
        "encoding": str(sample.encoding),
        "attachment": attachment.to_bytes().hex() if attachment is not None else None,
        "priority": str(sample.priority),
    }


def bytes_of(text):
    return None if text is None else bytes.fromhex(text)


def obey(session, word, *rest):
    if word == "subscribe":
        KEPT.append(session.declare_subscriber(rest[0], lambda sample: say(sample=told(sample))))
    elif word == "watch":
        live = session.liveliness()
        say_live = lambda sample: say(live=str(sample.key_expr), alive=sample.kind == zenoh.SampleKind.PUT)
        KEPT.append(live.declare_subscriber(rest[0], say_live, history=True))
    elif word == "get":
        replies = []
        for reply in session.get(rest[0], timeout=2.0):
            replies.append(told(reply.ok) if reply.ok is not None else {"error": reply.err.payload.to_string()})
        say(replies=replies)
    elif word == "gets":
        key, count = rest
        answers = [session.get(key, timeout=5.0) for _ in range(count)]
        said = [reply for replies in answers for reply in replies]
        say(answered=sum(reply.ok is not None for reply in said), refused=sum(reply.ok is None for reply in said))
    elif word == "ask":
        key, payload, encoding = (list(rest) + [None])[:3]
        replies = []
        for reply in session.get(key, payload=bytes.fromhex(payload), encoding=encoding, timeout=10.0):
            replies.append(told(reply.ok) if reply.ok is not None else {"error": reply.err.payload.to_string()})
        say(asked=payload, replies=replies)
    elif word == "answer":
        # Answers with the request's bytes in the opposite order; an empty one with an error, and "00" never.
        def answer(query):
            payload = query.payload.to_bytes()
            if not payload:
                query.reply_err("nothing was asked")
            elif payload != b"\0":
                query.reply(rest[0], payload[::-1])

        KEPT.append(session.declare_queryable(rest[0], answer))
    elif word == "token":
        KEPT.append(session.liveliness().declare_token(rest[0]))
    elif word == "put":
        key, payload, encoding, attachment = (list(rest) + [None, None])[:4]
        session.put(key, bytes.fromhex(payload), encoding=encoding, attachment=bytes_of(attachment))
    elif word == "flood":
        key, payload, count, rate = rest
        payload = bytes.fromhex(payload)
        began = time.monotonic()
        publisher = session.declare_publisher(key, congestion_control=zenoh.CongestionControl.BLOCK)
        for number in range(count):
            while (time.monotonic() - began) * rate < number:
                time.sleep(0.0005)
            publisher.put(payload)
        say(flooded=count)
    elif word == "delete":
        session.delete(rest[0])
    say(done=word)


def main():
    zenoh.init_log_from_env_or("off")
    session = zenoh.open(zenoh.Config.from_json5(sys.argv[1]))
    say(opened=True)
    for line in sys.stdin:
        obey(session, *json.loads(line))


main()
