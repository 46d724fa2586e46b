"""Attacks on a worker's memory. The server's peak is compared with its budget."""

import select
import ssl
import struct
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable

from harness import MIB, OVER_TLS, PLAIN, SLACK_BYTES, Failed, Server, connect, expect, SLACK
from websocket import BINARY, CONTINUATION, DEFLATE, NO_MASK, PING, WebSocket, deflated, frame, random_bytes

BUDGET_BYTES = 64 * MIB
# How long clients send as much as the sockets accept, and how long they wait for a socket to accept more.
PUSH_SECONDS = 4
STALL_SECONDS = 0.3
# How long the server may take to process what it was sent.
SETTLE_SECONDS = 4


@dataclass(frozen=True)
class Attack:
    title: str
    # A context manager that takes the server and the setup. The attack lasts for its block.
    attack: Callable
    options: tuple = ()
    # How long the long message of a newcomer is: no more than the fair part of a connection (docs/limits.md) holds.
    newcomer_bytes: int = 100_000


ATTACKS = {}


def attack(name, *options, **more):
    def add(function):
        ATTACKS[name] = Attack(name, contextmanager(function), options, **more)
        return function

    return add


@dataclass
class Peak:
    peak_bytes: int
    # What went wrong for a well-behaved client meanwhile, or None.
    neighbour: str | None


def measure(setup, name, memory_option=True):
    """Measures the server's peak of resident bytes, with `--memory-max` if the server has it."""
    one = ATTACKS[name]
    options = ["--message-seconds-max", "30", *one.options]
    if memory_option:
        options += ["--memory-max", str(BUDGET_BYTES)]
    server = Server(setup, options, (*PLAIN, *OVER_TLS))
    try:
        with one.attack(server, setup):
            neighbour = well_behaved(server, one.newcomer_bytes)
            settle(server)
            peak = server.peak_bytes()
        expect(server.is_alive(), f"the server has ended with {server.process.returncode}")
        return Peak(max(peak, server.peak_bytes()), neighbour)
    finally:
        server.stop()


def settle(server):
    """Waits until the server sleeps, or has had enough time."""
    until, before = time.monotonic() + SETTLE_SECONDS, server.processor_seconds()
    while time.monotonic() < until:
        time.sleep(0.25)
        now = server.processor_seconds()
        if now - before < 0.03:
            return
        before = now


def well_behaved(server, message_bytes):
    """Has a newcomer echo a word, and a message in two fragments. Returns what went wrong, or None."""
    try:
        begun = time.monotonic()
        with WebSocket(server.addr(), seconds_max=5 * SLACK) as socket:
            socket.echo()
            payload = random_bytes(message_bytes // 2)
            socket.send(
                frame(BINARY, payload, fin=False, mask=NO_MASK), frame(CONTINUATION, payload, mask=NO_MASK)
            )
            expect(socket.message() == payload * 2, "another echo")
        expect(time.monotonic() - begun < 5 * SLACK, f"{time.monotonic() - begun:.1f} s for two echoes")
    except (Failed, OSError) as error:
        return str(error)
    return None


def push(socks, payloads, bytes_max, seconds=PUSH_SECONDS, stall=STALL_SECONDS):
    """Sends to all sockets at once, again and again, until none takes more or the time is over."""
    left = {}
    poll = select.epoll()
    for sock, payload in zip(socks, payloads):
        sock.setblocking(False)
        left[sock.fileno()] = [sock, memoryview(payload), 0, bytes_max]
        poll.register(sock, select.EPOLLOUT)
    until = time.monotonic() + seconds
    while left and time.monotonic() < until:
        ready = poll.poll(stall)
        if not ready:
            break
        for descriptor, _ in ready:
            entry = left[descriptor]
            sock, payload, at, rest = entry
            try:
                sent = sock.send(payload[at : at + (1 << 20)])
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                continue
            except OSError:
                sent, rest = 0, 0
            entry[2] = (at + sent) % len(payload)
            entry[3] = rest - sent
            if entry[3] <= 0:
                poll.unregister(descriptor)
                del left[descriptor]
    poll.close()


def upgraded(server, count, path="/echo", extensions=None, setup=None):
    listener, tls = ("https", setup.tls) if setup else ("http", None)
    return [
        WebSocket(server.addr(listener), path, extensions, tls, receive_bytes=65536) for _ in range(count)
    ]


def close(clients):
    for client in clients:
        try:
            client.close()
        except OSError:
            pass


def unread(server, count, payload, bytes_max=16 * MIB, **how):
    sockets = upgraded(server, count, **how)
    push([socket.sock for socket in sockets], [payload] * count, bytes_max)
    yield
    close(sockets)


@attack("100 clients that read none of their echoes of 64 KiB")
def unread_echoes(server, _):
    yield from unread(server, 100, frame(BINARY, bytes(65_500), mask=NO_MASK))


@attack("100 clients that read none of their echoes of 1 MiB")
def unread_long_echoes(server, _):
    yield from unread(server, 100, frame(BINARY, bytes(MIB), mask=NO_MASK))


@attack("100 clients that read none of their echoes of 15 MiB")
def unread_longest_echoes(server, _):
    yield from unread_in_turn(server)


@attack(
    "100 clients that read none of their echoes of 15 MiB, --engine tungstenite-exponential",
    "--engine",
    "tungstenite-exponential",
)
def unread_bridged_echoes(server, _):
    yield from unread_in_turn(server)


@attack(
    "100 clients that read none of their echoes of 15 MiB, --engine tungstenite-linear",
    "--engine",
    "tungstenite-linear",
)
def unread_linear_echoes(server, _):
    yield from unread_in_turn(server)


def unread_in_turn(server):
    # Ten at a time: 100 that announce at once would be refused.
    message = frame(BINARY, bytes(15 * MIB), mask=NO_MASK)
    sockets = upgraded(server, 100)
    for n in range(0, 100, 10):
        push([socket.sock for socket in sockets[n : n + 10]], [message] * 10, len(message), 1, 0.1)
    yield
    close(sockets)


@attack("1,000 clients that read none of their echoes of 10 bytes")
def unread_short_echoes(server, _):
    yield from unread(server, 1000, frame(BINARY, bytes(10)) * 4096, bytes_max=4 * MIB)


@attack("300 clients that read none of the pongs for their pings")
def unread_pongs(server, _):
    yield from unread(server, 300, frame(PING, bytes(125), mask=NO_MASK) * 500, bytes_max=4 * MIB)


@attack("50 clients that read none of their echoes over TLS")
def unread_echoes_tls(server, setup):
    yield from unread(server, 50, frame(BINARY, bytes(MIB), mask=NO_MASK), setup=setup)


@attack("16 clients that announce 16 MiB in 15 bytes")
def announced(server, _):
    sockets = upgraded(server, 16)
    for socket in sockets:
        socket.send(frame(BINARY, b"a", length=16 * MIB))
    time.sleep(0.2)
    yield
    close(sockets)


@attack("16 clients that announce 16 MiB in 11 bytes, to sink over TCP")
def announced_to_sink(server, _):
    socks = [connect(server.addr("sink")) for _ in range(16)]
    for sock in socks:
        sock.sendall(struct.pack("<I", 16 * MIB) + b"trickle")
    time.sleep(0.2)
    yield
    close(socks)


@attack("200 clients that announce 16 MiB, and send some of it")
def announced_and_trickled(server, _):
    sockets = upgraded(server, 200)
    for socket in sockets:
        socket.send(frame(BINARY, b"a", length=16 * MIB))
    push([socket.sock for socket in sockets], [bytes(65536)] * 200, 2 * MIB)
    yield
    close(sockets)


@attack("200 clients with a message in fragments that never ends")
def fragments(server, _):
    sockets = upgraded(server, 200)
    for socket in sockets:
        socket.send(frame(BINARY, b"", fin=False))
    piece = frame(CONTINUATION, bytes(60_000), fin=False, mask=NO_MASK)
    push([socket.sock for socket in sockets], [piece] * 200, 15 * MIB)
    yield
    close(sockets)


@attack(
    "200 clients with a message in fragments that never ends, --engine tungstenite-exponential",
    "--engine",
    "tungstenite-exponential",
    newcomer_bytes=16_000,  # tungstenite takes more than five times as much
)
def bridged_fragments(server, setup):
    yield from fragments(server, setup)


@attack("1,000 clients with 60 KiB of a frame of 64 KiB", newcomer_bytes=8_000)
def partial_frames(server, _):
    sockets = upgraded(server, 1000)
    begun = frame(BINARY, bytes(61_440), length=65_000, mask=NO_MASK)
    for socket in sockets:
        socket.send(begun)
    time.sleep(0.3)
    yield
    close(sockets)


@attack("200 readers of a source of 16 MiB that read nothing")
def unread_sources(server, _):
    sockets = upgraded(server, 200, "/source?bytes=16777216")
    time.sleep(2)
    yield
    close(sockets)


@attack("200 readers of a source of short messages that read nothing")
def unread_short_sources(server, _):
    sockets = upgraded(server, 200, "/source?bytes=10&batch=1000000000")
    time.sleep(2)
    yield
    close(sockets)


@attack("200 readers of sources over TCP that read nothing")
def unread_tcp_sources(server, _):
    socks = [connect(server.addr("source"), receive_bytes=65536) for _ in range(200)]
    for n, sock in enumerate(socks):
        sock.sendall(struct.pack("<III", 0xFFFFFFFF, 16 * MIB - n * 1000, 1 + n))
    time.sleep(2)
    yield
    close(socks)


@attack("200 readers of sources of 200 lengths over TLS that read nothing")
def unread_tls_sources(server, setup):
    socks = []
    for n in range(200):
        sock = setup.tls.wrap_socket(
            connect(server.addr("source-tls"), receive_bytes=65536), server_hostname="localhost"
        )
        sock.sendall(struct.pack("<III", 0xFFFFFFFF, 16 * MIB - n * 1000, 1 + n))
        socks.append(sock)
    time.sleep(2)
    yield
    close(socks)


def bombs(how, window):
    @attack(
        f"100 clients with a deflate bomb of 15 MiB, unread, a window of {window} bits, --deflate {how}",
        "--deflate",
        how,
    )
    def attack_by_bombs(server, _):
        # Repeats of this block are farther apart than a window of 9 bits, so the answer is long again.
        block = b"\0" if window == 15 else random_bytes(2000)
        bomb = frame(BINARY, deflated(block * (15 * MIB // len(block)), 15), rsv=4, mask=NO_MASK)
        sockets = upgraded(server, 100, extensions=f"{DEFLATE}; server_max_window_bits={window}")
        if sockets[0].agreed is None:
            # Nothing inflates then. Sends as many bytes without compression.
            bomb = frame(BINARY, bytes(len(bomb)), mask=NO_MASK)
        push([socket.sock for socket in sockets], [bomb] * 100, len(bomb))
        yield
        close(sockets)


bombs("takeover", 8)
bombs("takeover", 9)
bombs("takeover", 15)
bombs("shared", 9)


@attack(
    "1,000 clients with compression of their own, --deflate takeover",
    "--deflate",
    "takeover",
    newcomer_bytes=8_000,
)
def contexts(server, _):
    sockets = upgraded(server, 1000, extensions=DEFLATE)
    for socket in sockets:
        socket.send(frame(BINARY, deflated(random_bytes(2000)), rsv=4, mask=NO_MASK))
    time.sleep(1)
    yield
    close(sockets)


@attack("1,000 heads of 7 KiB that do not end")
def heads(server, _):
    socks = [connect(server.addr()) for _ in range(1000)]
    for sock in socks:
        sock.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 7000)
    time.sleep(0.3)
    yield
    close(socks)


@attack("1,000 TLS clients with 16 KiB less a byte of a first record")
def hello_records(server, _):
    socks = [connect(server.addr("https")) for _ in range(1000)]
    hello = b"\x16\3\1\x40\0" + b"\1\0\x3f\xfc\3\3" + bytes(16_377)
    for sock in socks:
        sock.sendall(hello)
    time.sleep(0.3)
    yield
    close(socks)


@attack("300 TLS clients with 16 KiB less a byte of a record")
def records(server, setup):
    socks = []
    for _ in range(300):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = setup.tls.wrap_bio(incoming, outgoing, server_hostname="localhost")
        sock = connect(server.addr("echo-tls"))
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(65536))
        session.write(bytes(16_000))
        sock.sendall(outgoing.read()[:-1])
        socks.append(sock)
    time.sleep(0.3)
    yield
    close(socks)


@attack("2,000 WebSockets that are idle")
def idle(server, _):
    sockets = upgraded(server, 2000)
    yield
    close(sockets)


LIMIT_BYTES = BUDGET_BYTES + SLACK_BYTES
