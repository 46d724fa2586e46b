"""Echo, sink and source over TCP, with bytes that violate their protocols."""

import struct
import time

from harness import MIB, connect, expect, read_to_end, reset, tcp_table
from registry import add_case, case
from websocket import random_bytes


def ends(name, service, sent, expects="an end of the stream", half_close=False):
    """Bytes that end the connection without an answer."""

    def run(ctx):
        with connect(ctx.server().addr(service)) as sock:
            sock.sendall(sent)
            if half_close:
                sock.shutdown(1)
            answer = read_to_end(sock)
        expect(answer == b"", f"an answer: {answer[:40]!r}")

    add_case(f"{service}: {name}", expects, run)


LIMIT = 16 * MIB

ends("a message of one more than the limit", "sink", struct.pack("<I", LIMIT + 1))
ends("a message of 4 GiB", "sink", b"\xff\xff\xff\xff")
ends("an end within a length", "sink", b"\x05\0", half_close=True)
ends("an end within a message", "sink", b"\x05\0\0\0ab", half_close=True)
ends("a message of one more than the limit", "source", struct.pack("<III", 1, LIMIT + 1, 1))
ends("a message of 4 GiB", "source", struct.pack("<III", 1, 0xFFFFFFFF, 1))
ends("a batch of nothing", "source", struct.pack("<III", 1, 1, 0))
ends("an end within a request", "source", bytes(11), half_close=True)
ends("a request of nothing", "source", struct.pack("<III", 0, 0, 1), half_close=True)
ends("an end at once", "echo", b"", half_close=True)


@case("sink: 20,000 empty messages in one write", "as many answers of zero")
def empty_messages(ctx):
    with connect(ctx.server().addr("sink")) as sock:
        sock.sendall(bytes(4 * 20_000))
        sock.shutdown(1)
        answer = read_to_end(sock)
    expect(answer == bytes(8 * 20_000), f"{len(answer)} bytes")


@case("sink: lengths that are cut everywhere", "an answer for each message")
def cut_lengths(ctx):
    with connect(ctx.server().addr("sink")) as sock:
        for _ in range(20):
            for part in [b"\x03", b"\0\0", b"\0a", b"bc"]:
                sock.sendall(part)
                time.sleep(0.001)
        sock.shutdown(1)
        answer = read_to_end(sock)
    expect(answer == struct.pack("<Q", 3) * 20, f"{len(answer)} bytes")


@case("echo: 8 MiB that are read only when all is sent to the kernel", "the same bytes")
def echo_of_much(ctx):
    sent = random_bytes(8 * MIB)
    with connect(ctx.server().addr("echo")) as sock:
        sock.settimeout(0.3)
        out = memoryview(sent)
        try:
            while out:
                out = out[sock.send(out) :]
        except TimeoutError:
            pass  # the server waits for us to read: back-pressure
        expect(len(out) > 0 or len(sent) < 12 * MIB, "the server takes without a bound")
        back = bytearray()
        sock.settimeout(5)
        while len(back) < len(sent):
            if out:
                sock.setblocking(False)
                try:
                    out = out[sock.send(out) :]
                except BlockingIOError:
                    pass
                sock.settimeout(5)
            part = sock.recv(1 << 20)
            expect(part, f"an end after {len(back)} bytes")
            back += part
    expect(back == sent, "other bytes")


for service in ["echo", "sink", "source"]:

    @case(f"{service}: 300 connections that are reset at once", "a healthy server")
    def resets(ctx, service=service):
        for n in range(300):
            sock = connect(ctx.server().addr(service))
            if n % 3:
                sock.sendall(b"\x05\0\0\0" * (n % 3))
            reset(sock)

    @case(f"{service}: out-of-band data", "a healthy server")
    def urgent(ctx, service=service):
        from socket import MSG_OOB

        with connect(ctx.server().addr(service)) as sock:
            for _ in range(50):
                sock.send(b"!", MSG_OOB)

    @case(f"{service}: keepalive notices a peer that vanishes", "a keepalive timer on the server's socket")
    def keepalive(ctx, service=service):
        port = ctx.server().addr(service)[1]
        with connect(ctx.server().addr(service)) as sock:
            mine = sock.getsockname()[1]
            time.sleep(0.2)
            timers = [timer for local, remote, *_, timer in tcp_table() if (local, remote) == (port, mine)]
        expect(timers == [2], f"timer {timers} (2 is keepalive's, 0 is none)")


@case("source: requests behind requests, 1,000 at once", "all answers, in order")
def pipelined_requests(ctx):
    with connect(ctx.server().addr("source")) as sock:
        sock.sendall(struct.pack("<III", 2, 3, 1) * 1000)
        sock.shutdown(1)
        answer = read_to_end(sock)
    expect(answer == b"\3\0\0\0\0\1\2\3\0\0\0\1\2\3" * 1000, f"{len(answer)} bytes")
