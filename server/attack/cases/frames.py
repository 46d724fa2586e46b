"""Frames that violate RFC 6455, each in one way; and unusual frames that do not."""

import struct

from harness import MIB, expect, read_to_end, reset
from registry import add_case, case
from websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    DEFLATE,
    NO_MASK,
    PING,
    PONG,
    TEXT,
    WebSocket,
    close_frame,
    deflated,
    frame,
)


def closed_with(name, sent, *codes, extensions=None, path="/echo"):
    """Bytes that end the connection with a close frame of one of these codes."""

    def run(ctx):
        server = ctx.server("--deflate", "takeover") if extensions else ctx.server()
        with WebSocket(server.addr(), path, extensions) as socket:
            socket.send(sent)
            code = socket.close_code()
            expect(code in codes, f"a close of {code}")

    add_case(f"frames: {name}", f"a close of {' or '.join(map(str, codes))}", run)


def still_open(name, sent, *messages, extensions=None):
    """Bytes that are answered by these messages. The connection goes on."""

    def run(ctx):
        server = ctx.server("--deflate", "takeover") if extensions else ctx.server()
        with WebSocket(server.addr(), extensions=extensions) as socket:
            socket.send(sent)
            for message in messages:
                back = socket.message()
                expect(back == message, f"{back[:40]!r} for {message[:40]!r}")
            socket.echo()

    add_case(f"frames: {name}", "an answer, and a connection that goes on", run)


# Section 5.2: the head.
for bit, rsv in [("RSV1", 4), ("RSV2", 2), ("RSV3", 1)]:
    closed_with(bit, frame(TEXT, b"a", rsv=rsv), 1002)
    closed_with(f"{bit} on a ping", frame(PING, rsv=rsv), 1002, extensions=DEFLATE)
    closed_with(f"{bit} on a close", frame(CLOSE, rsv=rsv), 1002)
closed_with("RSV2 where messages are compressed", frame(TEXT, b"a", rsv=2), 1002, extensions=DEFLATE)
closed_with(
    "RSV1 on a continuation",
    frame(TEXT, deflated(b"a"), fin=False, rsv=4) + frame(CONTINUATION, b"", rsv=4),
    1002,
    extensions=DEFLATE,
)
for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15]:
    closed_with(f"opcode {opcode}", frame(opcode, b"a"), 1002)
closed_with("opcode 3 within a message", frame(TEXT, b"a", fin=False) + frame(3), 1002)
closed_with("a frame without a mask", frame(TEXT, b"a", mask=None), 1002)
closed_with("an empty frame without a mask", frame(TEXT, mask=None), 1002)
closed_with("a ping without a mask", frame(PING, mask=None), 1002)
closed_with("a close without a mask", frame(CLOSE, mask=None), 1002)
closed_with("a length of 0 in two bytes", frame(BINARY, width=2), 1002)
closed_with("a length of 125 in two bytes", frame(BINARY, bytes(125), width=2), 1002)
closed_with("a length of 125 in eight bytes", frame(BINARY, bytes(125), width=8), 1002)
closed_with("a length of 65,535 in eight bytes", frame(BINARY, bytes(65535), width=8), 1002)
closed_with("a length of 2^63", frame(BINARY, length=1 << 63), 1002, 1009)
closed_with("a length of 2^64 - 1", frame(BINARY, length=(1 << 64) - 1), 1002, 1009)
closed_with("a length of 2^63 - 1", frame(BINARY, length=(1 << 63) - 1), 1009)
closed_with("a length of 2^32", frame(BINARY, length=1 << 32), 1009)
closed_with("a length of one more than the limit", frame(BINARY, length=16 * MIB + 1), 1009)
closed_with("the same to the sink", frame(BINARY, length=16 * MIB + 1), 1009, path="/sink")
closed_with(
    "fragments that are together too long",
    frame(BINARY, b"a", fin=False) + frame(CONTINUATION, length=16 * MIB),
    1009,
)
closed_with(
    "fragments whose lengths overflow 64 bits",
    frame(BINARY, b"a", fin=False) + frame(CONTINUATION, length=(1 << 63) - 1),
    1009,
)
still_open("a mask of zeros", frame(BINARY, b"plain", mask=NO_MASK), b"plain")

# Section 5.4: fragments.
closed_with("a continuation of nothing", frame(CONTINUATION, b"a"), 1002)
closed_with("a continuation of nothing that is not the last", frame(CONTINUATION, b"a", fin=False), 1002)
closed_with("a continuation of a message that is whole", frame(TEXT, b"a") + frame(CONTINUATION), 1002)
closed_with("a message within a message", frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002)
closed_with("a binary message within a text", frame(TEXT, b"a", fin=False) + frame(BINARY, b"b"), 1002)
still_open(
    "10,000 empty fragments",
    frame(TEXT, b"a", fin=False) + frame(CONTINUATION, fin=False) * 10_000 + frame(CONTINUATION, b"b"),
    b"ab",
)
still_open(
    "a message of single bytes",
    frame(BINARY, b"a", fin=False) + frame(CONTINUATION, b"a", fin=False) * 4998 + frame(CONTINUATION, b"a"),
    b"a" * 5000,
)
still_open(
    "pings between fragments",
    (
        frame(TEXT, b"a", fin=False)
        + frame(PING, b"1")
        + frame(CONTINUATION, b"b", fin=False)
        + frame(PONG, b"2")
        + frame(CONTINUATION, b"c")
    ),
    b"abc",
)

# Section 5.5: control frames.
closed_with("a ping of 126 bytes", frame(PING, bytes(126)), 1002)
closed_with("a pong of 65,536 bytes", frame(PONG, bytes(65536)), 1002)
closed_with("a close of 126 bytes", frame(CLOSE, b"\x03\xe8" + b"a" * 124), 1002)
for name, opcode in [("ping", PING), ("pong", PONG), ("close", CLOSE)]:
    closed_with(f"a {name} in fragments", frame(opcode, fin=False), 1002)
closed_with("a ping that announces 2^63 - 1 bytes", frame(PING, length=(1 << 63) - 1), 1002)
still_open("10,000 pongs that nobody asked for", frame(PONG, bytes(125)) * 10_000)
closed_with("a close within a message", frame(TEXT, b"a", fin=False) + close_frame(1000), 1000)

# Section 7.4: why it is closed.
for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535]:
    closed_with(f"a close of {code}", close_frame(code), 1002)
for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999]:
    closed_with(f"a close of {code}, which is allowed", close_frame(code), code)
closed_with("a close of one byte", frame(CLOSE, b"\x03"), 1002)
closed_with("a reason that is not UTF-8", close_frame(1000, b"\xff"), 1007)
closed_with("a reason that ends within a character", close_frame(1000, b"\xe2\x82"), 1007)
closed_with("an empty close", close_frame(), None)
closed_with("a message behind a close", close_frame(1000) + frame(TEXT, b"late"), 1000)
closed_with("nonsense behind a close", close_frame(1000) + b"\xff" * 5000, 1000)
closed_with("two closes", close_frame(1000) + close_frame(1001), 1000)

# Section 8.1: text is UTF-8.
BAD_TEXT = {
    "a byte that begins nothing": b"a\xff",
    "a byte that only continues": b"a\x80",
    "a slash in two bytes": b"\xc0\xaf",
    "a slash in three bytes": b"\xe0\x80\xaf",
    "a slash in four bytes": b"\xf0\x80\x80\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "a character beyond the last": b"\xf4\x90\x80\x80",
    "five bytes for a character": b"\xf8\x88\x80\x80\x80",
    "an end within two bytes": b"a\xc3",
    "an end within three bytes": b"a\xe2\x82",
    "an end within four bytes": b"a\xf0\x9f\x98",
    "a character that is interrupted": b"\xe2a\x82\xac",
}
for name, text in BAD_TEXT.items():
    closed_with(f"text with {name}", frame(TEXT, text), 1007)
    closed_with(f"text with {name}, behind 70,000 bytes", frame(TEXT, b"a" * 70_000 + text), 1007)
    closed_with(f"text with {name}, compressed", frame(TEXT, deflated(text), rsv=4), 1007, extensions=DEFLATE)
    closed_with(
        f"text with {name}, byte by byte in fragments",
        frame(TEXT, fin=False)
        + b"".join(frame(CONTINUATION, text[n : n + 1], fin=False) for n in range(len(text)))
        + frame(CONTINUATION),
        1007,
    )
closed_with("text that is wrong before its message ends", frame(TEXT, b"a\xff", fin=False), 1007)
still_open(
    "characters that are cut between fragments",
    frame(TEXT, b"\xf0\x9f", fin=False)
    + frame(CONTINUATION, b"\x98", fin=False)
    + frame(CONTINUATION, b"\x80"),
    b"\xf0\x9f\x98\x80",
)


@case(
    "frames: cut off at each byte, by an end of the stream",
    "the connection ends each time, with nothing but the echo of what was whole",
)
def cut_off(ctx):
    sent = frame(TEXT, b"whole", fin=False) + frame(CONTINUATION, b"x" * 200) + frame(PING, b"p")
    for cut in range(1, len(sent), 2):
        with WebSocket(ctx.server().addr()) as socket:
            socket.send(sent[:cut])
            socket.sock.shutdown(1)
            read_to_end(socket.sock, 3)


@case("frames: cut off at each byte, by a reset", "a healthy server")
def cut_off_by_reset(ctx):
    sent = frame(BINARY, bytes(300), fin=False) + frame(CONTINUATION, bytes(70_000))
    for cut in [*range(1, 30), 302, 309, 316, 60_000, len(sent)]:
        socket = WebSocket(ctx.server().addr())
        socket.send(sent[:cut])
        reset(socket.sock)


@case("frames: each byte of a message comes alone", "its echo")
def byte_by_byte(ctx):
    with WebSocket(ctx.server().addr()) as socket:
        for byte in frame(BINARY, b"in pieces" * 20):
            socket.send(bytes([byte]))
        expect(socket.message() == b"in pieces" * 20, "another message")


@case("frames: 10,000 pings of 125 bytes at once", "a pong for the last of them, and an echo")
def many_pings(ctx):
    with WebSocket(ctx.server().addr()) as socket:
        socket.send(
            b"".join(frame(PING, struct.pack(">I", n) + bytes(121), mask=NO_MASK) for n in range(10_000))
        )
        while True:
            pong = socket.receive()
            expect(pong.opcode == PONG, f"opcode {pong.opcode}")
            if struct.unpack_from(">I", pong.payload)[0] == 9_999:
                break
        socket.echo()


@case("frames: 100 connections that send random bytes", "each is closed, with 1002, 1007 or 1009")
def random_frames(ctx):
    import random

    bytes_of = random.Random(1).randbytes
    for _ in range(100):
        with WebSocket(ctx.server().addr()) as socket:
            # The first byte is wrong whatever follows, or the rest might wait for more.
            socket.send(b"\xf3" + bytes_of(2000))
            code = socket.close_code()
            expect(code in (1002, 1007, 1009), f"a close of {code}")


@case("frames: a malformed request to /source", "a close of 1007, 1002 or 1003")
def bad_fetch(ctx):
    for request in [b"", bytes(11), bytes(13), b"\xff" * 12, struct.pack("<III", 1, 1, 0)]:
        with WebSocket(ctx.server().addr(), "/source") as socket:
            socket.send(frame(BINARY, request))
            code = socket.close_code()
            expect(code in (1002, 1003, 1007), f"a close of {code} for {request!r}")
