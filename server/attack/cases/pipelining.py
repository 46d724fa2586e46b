"""Clients that send more than a queue holds, and read it all: what is legitimate is never cut."""

import selectors
import time

from harness import MIB, expect
from registry import add_case
from websocket import (
    BINARY,
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


def exchange(socket, sent, count):
    """Sends all while it reads what comes; the frames that came, `count` messages and the close."""
    out, sock, frames = memoryview(sent), socket.sock, []
    sock.setblocking(False)
    deadline = time.monotonic() + SECONDS_MAX
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while True:
            expect(
                time.monotonic() < deadline,
                f"{len(frames)} of {count} messages after {SECONDS_MAX} s, {len(out)} bytes unsent",
            )
            for _, events in selector.select(1):
                if events & selectors.EVENT_WRITE:
                    try:
                        out = out[sock.send(out[: 1 << 18]) :]
                    except (BlockingIOError, ConnectionError):
                        pass
                    if not out:
                        selector.modify(sock, selectors.EVENT_READ)
                if events & selectors.EVENT_READ:
                    try:
                        part = sock.recv(1 << 20)
                    except BlockingIOError:
                        continue
                    except ConnectionError as error:
                        raise Ended(f"{error!r} after {len(frames)} messages") from error
                    if not part:
                        raise Ended(f"the end of the stream after {len(frames)} messages, without a close")
                    socket.buffered += part
                    if len(part) == 1 << 20 and len(socket.buffered) < 8 * MIB:
                        continue
                    while parsed := parse(socket.buffered):
                        del socket.buffered[: parsed[1]]
                        frames.append(parsed[0])
                        if parsed[0].opcode == 8:
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
                import zlib

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
                if tls:
                    frames = sequential(socket, sent, count)
                else:
                    frames = exchange(socket, sent, count)
                whole(socket, frames, count, payload)
            server.check()

    add_case(f"pipelining: {name}", f"{count} echoes and a close of 1000", run, "alone")


def sequential(socket, sent, count):
    """The same over TLS, whose sockets one thread at a time may use: what the client sends is what a
    connection buffers without a read."""
    import threading

    writer = threading.Thread(target=socket.send, args=(sent,), daemon=True)
    writer.start()
    frames = []
    while not frames or frames[-1].opcode != 8:
        frames.append(socket.receive())
    writer.join()
    return frames


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
