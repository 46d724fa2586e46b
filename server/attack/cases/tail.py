"""Tails: requests that are refused, clients that talk where they are to listen, and clients that do not read."""

import base64
import json
import os
import struct

from cases.handshake import ask, status
from harness import expect
from iggy import OK, PASSWORD, USER, Client, create_stream, create_topic, message, number, options, send
from registry import add_case, case
from websocket import BINARY, NO_MASK, WebSocket, frame, upgrade

LISTENERS = ("tcp", "http")
BINARY_PROTOCOL = "Sec-WebSocket-Protocol: owned-io.tail.binary.v1"


def authorization(text):
    return f"Authorization: Basic {base64.b64encode(text.encode()).decode()}"


RIGHT = authorization(f"{USER}:{PASSWORD}")


def server(ctx):
    return ctx.server(*options(ctx.setup), listeners=LISTENERS)


def topic(ctx):
    """The name of a stream and of its topic with one partition, and their numbers, for one case alone."""
    unique = "s" + os.urandom(8).hex()
    with Client(server(ctx).addr("tcp")) as iggy:
        stream = number(struct.unpack("<I", iggy.ask(create_stream(unique), OK)[:4])[0])
        made = iggy.ask(create_topic(stream, unique), OK)
    return unique, stream, number(struct.unpack("<I", made[:4])[0])


def refused(what, path, headers, expected):
    """A request that is answered by a status. `{}` in its path is the name of a stream and of its topic."""

    def run(ctx):
        name, _, _ = topic(ctx)
        head = ask(server(ctx).addr(), upgrade(path.replace("{}", name), extra=headers))
        expect(status(head) == expected, head[:80] or "the end of the stream")
        expect((expected == 401) == ("WWW-Authenticate: Basic" in head), f"{head!r}")

    add_case(f"tail: {what}", str(expected), run)


GOOD = "/tail/{}/{}/0"
refused("no user", GOOD, [], 401)
for what, header in [
    ("a wrong password", authorization(f"{USER}:{PASSWORD}x")),
    ("a wrong user", authorization(f"root:{PASSWORD}")),
    ("an empty password", authorization(f"{USER}:")),
    ("no colon", authorization(USER + PASSWORD)),
    ("what is not base64", "Authorization: Basic !!!!"),
    ("3,000 characters", "Authorization: Basic " + "A" * 3000),
    ("another scheme", RIGHT.replace("Basic", "Digest")),
]:
    refused(f"{what} for a password", GOOD, [header], 401)
for path in ["/tail", "/tail/", "/tail/{}/{}", "/tail/{}/{}/0/", "/tail/{}//0", "/tail/x/{}/0", "/tail/{}/x/0"]:
    refused(f"the path {path}", path, [RIGHT], 404)
for partition in ["1", "4294967295", "4294967296", "-1", "x", "%30%"]:
    refused(f"partition {partition}", "/tail/{}/{}/" + partition, [RIGHT], 404)
for name in ["%00", "..%2F..", "%ff", "%", "%4", "n" * 256, "%6e" * 1000]:
    refused(f"the stream {name[:12]}", f"/tail/{name}/{{}}/0", [RIGHT], 404)
for query in ["from=1", "from=18446744073709551615", "from=18446744073709551616", "from=-1", "from=", "to=1"]:
    refused(f"the query {query}", f"{GOOD}?{query}", [RIGHT], 400)


@case("tail: 1,000 messages to a server that only sends", "a close as 1008")
def talks(ctx):
    name, _, _ = topic(ctx)
    with WebSocket(server(ctx).addr(), f"/tail/{name}/{name}/0", extra=[RIGHT]) as socket:
        socket.send(*[frame(BINARY, b"hello", mask=NO_MASK)] * 1000)
        code = socket.close_code()
    expect(code == 1008, f"a close as {code}")


@case("tail: 30 clients that do not read, and one that does", "all messages for that one, in order")
def unread(ctx):
    name, stream, at = topic(ctx)
    addr, path = server(ctx).addr(), f"/tail/{name}/{name}/0"
    deaf = [WebSocket(addr, path, receive_bytes=4096, extra=[RIGHT]) for _ in range(30)]
    try:
        with WebSocket(addr, path, extra=[RIGHT]) as reading, Client(server(ctx).addr("tcp")) as iggy:
            for n in range(100):
                payload = f"{n} ".encode() * 10_000
                iggy.ask(send(stream, at, [message(payload)]), OK)
                pushed = json.loads(reading.message())
                expect(pushed["offset"] == n and pushed["payload"].encode() == payload, f"offset {pushed['offset']}")
    finally:
        for socket in deaf:
            socket.close()


@case("tail: a client that comes late, in binary", "all messages from the first on")
def late(ctx):
    name, stream, at = topic(ctx)
    payloads = [os.urandom(1 + n * 1000) for n in range(50)]
    with Client(server(ctx).addr("tcp")) as iggy:
        for payload in payloads:
            iggy.ask(send(stream, at, [message(payload)]), OK)
    path = f"/tail/{name}/{name}/0?from=first"
    with WebSocket(server(ctx).addr(), path, extra=[RIGHT, BINARY_PROTOCOL]) as socket:
        for n, payload in enumerate(payloads):
            pushed = socket.message()
            expect(struct.unpack("<Q", pushed[:8])[0] == n and pushed[16:] == payload, f"{len(pushed)} bytes")
