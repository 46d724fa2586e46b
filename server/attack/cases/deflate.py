"""Compressed messages that are corrupt, or inflate to very much."""

import time
import zlib

from harness import MIB, expect
from registry import add_case, case
from websocket import BINARY, CONTINUATION, DEFLATE, NO_MASK, TEXT, WebSocket, deflated, frame


def server(ctx, how="takeover"):
    return ctx.server("--deflate", how)


def corrupt(name, payload):
    """A message that cannot be inflated ends its connection, with both kinds of compression."""

    def run(ctx):
        for how in ["takeover", "shared"]:
            with WebSocket(server(ctx, how).addr(), extensions=DEFLATE) as socket:
                socket.send(frame(BINARY, payload, rsv=4))
                code = socket.close_code()
                expect(code in (1002, 1007), f"a close of {code}, --deflate {how}")

    add_case(f"deflate: {name}", "a close of 1002 or 1007", run)


GOOD = deflated(b"some words, some words, some other words")

corrupt("a block of a type that is not there", b"\x07")
corrupt("random bytes", bytes((n * 197 + 91) % 256 for n in range(500)))
corrupt("a stored block whose lengths differ", b"\x00\x05\x00\x00\x00abcde")
corrupt("a distance before the beginning", b"\x4b\x04\x33\x00" + b"\x02\x13\x00")
corrupt("dynamic codes that are over-subscribed", b"\x04\xff\xff\xff\xff\xff\xff")
corrupt("dynamic codes that are missing", b"\x04")
corrupt("a stream that ends within a code", GOOD[:-3])
corrupt("a header of zlib", zlib.compress(b"some words" * 100))
corrupt("a stream of gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + GOOD)
corrupt("a bit of a code that is wrong", bytes([GOOD[0] ^ 0x06]) + GOOD[1:])


def well(name, frames, message):
    def run(ctx):
        for how in ["takeover", "shared"]:
            with WebSocket(server(ctx, how).addr(), extensions=DEFLATE) as socket:
                socket.send(frames)
                back = socket.message()
                expect(back == message, f"{back[:40]!r}, --deflate {how}")
                socket.echo(b"and on" * 100)

    add_case(f"deflate: {name}", "an echo, and a connection that goes on", run)


well("an empty message", frame(BINARY, b"\0", rsv=4), b"")
well(
    "a message in single bytes",
    frame(BINARY, GOOD[:1], fin=False, rsv=4)
    + b"".join(frame(CONTINUATION, GOOD[n : n + 1], fin=False) for n in range(1, len(GOOD)))
    + frame(CONTINUATION),
    b"some words, some words, some other words",
)
well("a message that is not compressed", frame(TEXT, b"as it is"), b"as it is")
well(
    "stored blocks alone", frame(BINARY, deflated(b"x" * 70_000, level=0), rsv=4, mask=NO_MASK), b"x" * 70_000
)
well(
    "a thousand empty blocks",
    frame(BINARY, b"\0\0\0\xff\xff" * 1000 + GOOD, rsv=4),
    b"some words, some words, some other words",
)


def bomb(path, how, message_bytes):
    def run(ctx):
        zeros = deflated(bytes(message_bytes))
        begun = time.monotonic()
        with WebSocket(server(ctx, how).addr(), path, extensions=DEFLATE) as socket:
            socket.send(frame(BINARY, zeros, rsv=4, mask=NO_MASK))
            code = socket.close_code()
        seconds = time.monotonic() - begun
        expect(code == 1009, f"a close of {code}")
        expect(seconds < 3, f"1009 after {seconds:.1f} s")

    add_case(
        f"deflate: {message_bytes // MIB} MiB of zeros to {path}, --deflate {how}",
        "a close of 1009 within 3 s",
        run,
    )


for size in [17 * MIB, 256 * MIB]:
    bomb("/echo", "takeover", size)
    bomb("/sink", "takeover", size)
    bomb("/echo", "shared", size)


@case("deflate: a message that is compressed, where nothing was agreed", "a close of 1002")
def not_agreed(ctx):
    with WebSocket(server(ctx).addr()) as socket:
        socket.send(frame(BINARY, GOOD, rsv=4))
        code = socket.close_code()
        expect(code == 1002, f"a close of {code}")


@case(
    "deflate: a distance beyond the window that was agreed to",
    "a close of 1002 or 1007, or the true echo: never other bytes",
)
def beyond_the_window(ctx):
    payload = bytes(range(256)) + bytes(2000) + bytes(range(256))
    with WebSocket(server(ctx).addr(), extensions=f"{DEFLATE}; client_max_window_bits=9") as socket:
        socket.send(frame(BINARY, deflated(payload, 15), rsv=4))
        answer = socket.receive()
        if answer.opcode == 8:
            expect(answer.close_code in (1002, 1007), f"a close of {answer.close_code}")
        else:
            back = answer.payload
            if answer.rsv == 4:
                back = socket.inflater.decompress(back + b"\0\0\xff\xff")
            expect(back == payload, "other bytes than were sent")
