"""Clients that send more than a queue holds, and read every answer: they are never cut off."""

import select
import ssl
import time
import zlib

from harness import MIB, expect
from registry import add_case
from websocket import (
    BINARY,
    CLOSE,
    DEFLATE,
    NO_MASK,
    Ended,
    WebSocket,
    close_frame,
    deflated,
    frame,
    parse,
    random_bytes,
)

SECONDS_MAX = 25


# The errors of a socket, or of TLS over it, that would block.
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def exchange(socket, sent, count):
    """Sends all bytes and reads meanwhile. Returns the frames up to the close, of which `count` should be messages."""
    out, sock, frames = memoryview(sent), socket.sock, []
    sock.setblocking(False)
    deadline = time.monotonic() + SECONDS_MAX
    while not (frames and frames[-1].opcode == CLOSE):
        left = f"{len(frames)} of {count} messages after {SECONDS_MAX} s, {len(out)} bytes unsent"
        expect(time.monotonic() < deadline, left)
        select.select([sock], [sock] if out else [], [], 1)
        try:
            out = out[sock.send(out[: 1 << 18]) :] if out else out
        except (*WOULD_BLOCK, ConnectionError):
            pass  # reading shows whether the connection has ended
        ended = None
        try:
            while part := sock.recv(1 << 20):
                socket.buffered += part
            ended = "the end of the stream"
        except WOULD_BLOCK:
            pass
        except ConnectionError as error:
            ended = repr(error)
        while parsed := parse(socket.buffered):
            del socket.buffered[: parsed[1]]
            frames.append(parsed[0])
        if ended and not (frames and frames[-1].opcode == CLOSE):
            raise Ended(f"{ended} after {len(frames)} messages, without a close")
    return frames


def whole(socket, frames, count, payload):
    closing = frames.pop()
    expect(closing.close_code == 1000, f"a close of {closing.close_code} after {len(frames)} messages")
    expect(len(frames) == count and all(one.fin for one in frames), f"{len(frames)} messages")
    for one in frames:
        back = one.payload
        if one.rsv == 4:
            back = socket.inflater.decompress(back + b"\0\0\xff\xff")
            if "server_no_context_takeover" in (socket.agreed or ""):
                socket.inflater = zlib.decompressobj(-15)
        expect(back == payload, "another message than was sent")


def pipelined(name, count, size, kind, how=None, window=None, tls=False):
    def run(ctx):
        payload = random_bytes(size) if kind == "random" else (b"some words and more " * size)[:size]
        listeners = ("http", "https") if tls else ("http",)
        options = ["--deflate", how] if how else []
        offer = None
        if how:
            offer = DEFLATE + (f"; server_max_window_bits={window}" if window else "")
        with ctx.fresh(*options, listeners=listeners) as server:
            addr = server.addr("https" if tls else "http")
            with WebSocket(addr, extensions=offer, tls=ctx.tls if tls else None) as socket:
                if socket.agreed and kind != "random":
                    one = frame(BINARY, deflated(payload), rsv=4, mask=NO_MASK)
                else:
                    one = frame(BINARY, payload, mask=NO_MASK)
                sent = one * count + close_frame(1000)
                frames = exchange(socket, sent, count)
                whole(socket, frames, count, payload)
            server.check()

    add_case(f"pipelining: {name}", f"{count} echoes and a close of 1000", run, "alone")


for kind in ["random", "words"]:
    pipelined(f"30 messages of 1 MiB, {kind}", 30, MIB, kind)
    pipelined(f"2 messages of 10 MiB, {kind}", 2, 10 * MIB, kind)
    for window in [8, 9, 10, 15]:
        pipelined(
            f"30 messages of 1 MiB, {kind}, --deflate takeover, a window of {window} bits",
            30,
            MIB,
            kind,
            "takeover",
            window,
        )
        pipelined(
            f"2 messages of 10 MiB, {kind}, --deflate takeover, a window of {window} bits",
            2,
            10 * MIB,
            kind,
            "takeover",
            window,
        )
    pipelined(f"30 messages of 1 MiB, {kind}, --deflate shared", 30, MIB, kind, "shared")
pipelined("2 messages of 16 MiB", 2, 16 * MIB, "random")
pipelined("100,000 messages of 1 byte", 100_000, 1, "random")
pipelined("100,000 messages of 1 byte, --deflate takeover", 100_000, 1, "random", "takeover")
pipelined("8 messages of 1 MiB over TLS", 8, MIB, "random", tls=True)
