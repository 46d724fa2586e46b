"""Clients that send too little, too slowly, or nothing, or that read nothing: each is closed in time.

These cases mostly wait, so they run at the same time, each with a server of its own.
"""

import struct
import time

from harness import MIB, OVER_TLS, PLAIN, ask_for_health, connect, expect, read_to_end, seconds_to_end, tcp_table
from registry import add_case, case
from websocket import BINARY, CONTINUATION, NO_MASK, Ended, WebSocket, frame, upgrade

# A handshake may take 10 s, and the wait for a client to end 5 s by default. A busy machine adds to both.
HANDSHAKE_SECONDS_MAX = 10
LINGER_SECONDS_MAX = 5
LATE_SECONDS_MAX = 4
BRIEF = ("--idle-seconds-max", "1", "--message-seconds-max", "1")


def silent(listener):
    # HTTP and TLS have limits of their own for the request and the handshake. Idleness is noticed up to a third late.
    limit = 2 if listener in ("echo", "sink", "source") else HANDSHAKE_SECONDS_MAX

    def run(ctx):
        with ctx.fresh(*BRIEF, listeners=("http", listener) if listener != "http" else ("http",)) as server:
            with connect(server.addr(listener)) as sock:
                seconds = seconds_to_end(sock, HANDSHAKE_SECONDS_MAX + LATE_SECONDS_MAX)
            expect(seconds < limit + LATE_SECONDS_MAX, f"an end after {seconds:.1f} s")
            server.check()

    add_case(
        f"silence: a client that says nothing to {listener}" + (", --idle-seconds-max 1" if limit == 2 else ""),
        "an end in time",
        run,
        "waiting",
    )


for listener in (*PLAIN, *OVER_TLS):
    silent(listener)


def kept_alive(listener, seconds_max):
    """A client that was answered, and asks for nothing more."""

    def run(ctx):
        with ctx.fresh(*BRIEF, listeners=("http", listener) if listener != "http" else ("http",)) as server:
            with connect(server.addr(listener)) as sock:
                ask_for_health(sock)
                seconds = seconds_to_end(sock, seconds_max + LATE_SECONDS_MAX)
            expect(seconds > seconds_max - 1, f"an end after {seconds:.1f} s")
            server.check()

    add_case(
        f"silence: a client that was answered by {listener}, and keeps its connection",
        f"an end after {seconds_max} s",
        run,
        "waiting",
    )


kept_alive("http", 10)
kept_alive("admin", 60)


def stops(name, listener, sent, seconds_max):
    def run(ctx):
        with ctx.fresh(*BRIEF, listeners=PLAIN) as server:
            with connect(server.addr(listener)) as sock:
                sock.sendall(sent)
                seconds = seconds_to_end(sock, seconds_max + LATE_SECONDS_MAX)
            expect(seconds < seconds_max + LATE_SECONDS_MAX, f"an end after {seconds:.1f} s")
            server.check()

    add_case(f"silence: {name}", "an end in time", run, "waiting")


stops("a length without its message to sink", "sink", struct.pack("<I", 100), 1)
stops("half a length to sink", "sink", b"\5\0", 1)
stops("half a request to source", "source", bytes(6), 1)
stops("half an echo, then nothing, to echo", "echo", b"half", 1)
stops("a frame without its payload", "http", upgrade() + frame(BINARY, length=1000), 1 + 5)
stops("a fragment without an end", "http", upgrade() + frame(BINARY, b"a", fin=False), 1 + 5)
stops("half the head of a frame", "http", upgrade() + frame(BINARY, length=1000)[:3], 1 + 5)


def slow_head(name, parts, pause, is_first=True):
    def run(ctx):
        with ctx.fresh() as server:
            with connect(server.addr()) as sock:
                if not is_first:
                    ask_for_health(sock)
                begun = time.monotonic()
                try:
                    for part in parts:
                        sock.sendall(part)
                        sock.settimeout(pause)
                        try:
                            if sock.recv(1, 2):  # MSG_PEEK: has it answered?
                                break
                        except TimeoutError:
                            pass
                except ConnectionError:
                    pass
                answer = read_to_end(sock, HANDSHAKE_SECONDS_MAX + LATE_SECONDS_MAX)
                seconds = time.monotonic() - begun
            expect(answer.startswith(b"HTTP/1.1 408 "), f"{answer[:60]!r} after {seconds:.1f} s")
            expect(seconds < HANDSHAKE_SECONDS_MAX + LATE_SECONDS_MAX, f"408 after {seconds:.1f} s")
            server.check()

    add_case(f"slow: {name}", f"408 within {HANDSHAKE_SECONDS_MAX} s and a little", run, "waiting")


slow_head("a head that stops", [b"GET /health HTTP/1.1\r\nHost: a\r\n"], 0.1)
slow_head("a head of a byte a second", [bytes([byte]) for byte in upgrade()], 1)
slow_head("a second head, of a byte a second", [bytes([byte]) for byte in upgrade()], 1, is_first=False)
slow_head("a head of a header a second", [b"GET /echo HTTP/1.1\r\n"] + [b"X: a\r\n"] * 30, 1)


@case(
    "slow: a client that was answered and does not close, or goes on to send",
    f"the answer at once; an end of its connection within {LINGER_SECONDS_MAX} s and a little",
    "waiting",
)
def answered(ctx):
    with ctx.fresh("--connections-max", "2") as server:
        request = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        begun = time.monotonic()
        silent, sending = connect(server.addr()), connect(server.addr())
        for sock in (silent, sending):
            sock.sendall(request)
            answer = read_to_end(sock)
            expect(answer.startswith(b"HTTP/1.1 200 "), answer[:60])
        # Both connections are taken, so two further clients wait until both have ended. Neither client closes its own.
        waiting = [connect(server.addr(), LINGER_SECONDS_MAX + LATE_SECONDS_MAX) for _ in range(2)]
        answers = [b"", b""]
        for sock in waiting:
            sock.sendall(request)
            sock.settimeout(0.3)
        while not all(answers) and time.monotonic() - begun < LINGER_SECONDS_MAX + LATE_SECONDS_MAX:
            try:
                sending.sendall(b"a")
            except OSError:
                pass
            for number, sock in enumerate(waiting):
                try:
                    answers[number] = answers[number] or sock.recv(100)
                except TimeoutError:
                    pass
        seconds = time.monotonic() - begun
        for sock, answer in zip(waiting, answers, strict=True):
            sock.close()
            expect(answer.startswith(b"HTTP/1.1 200 "), f"{answer[:60]!r} after {seconds:.1f} s")
        silent.close()
        sending.close()
        server.check()


@case(
    "slow: 500 heads, and 200 hellos, of a byte a second",
    "/health meanwhile, and that all are ended",
    "waiting",
)
def slow_loris(ctx):
    with ctx.fresh("--connections-max", "4000", listeners=("http", "https")) as server:
        heads = [connect(server.addr()) for _ in range(500)]
        hellos = [connect(server.addr("https")) for _ in range(200)]
        begun, at = time.monotonic(), 0
        head, hello = upgrade(), b"\x16\x03\x01\x02\x00" + bytes(100)
        while time.monotonic() - begun < HANDSHAKE_SECONDS_MAX + LATE_SECONDS_MAX:
            for socks, bytes_of in [(heads, head), (hellos, hello)]:
                for sock in socks:
                    try:
                        sock.send(bytes_of[at : at + 1])
                    except OSError:
                        pass
            at += 1
            time.sleep(1)
            server.health()
        left = 0
        for sock in heads + hellos:
            sock.settimeout(0.2)
            try:
                while sock.recv(4096):
                    pass
            except TimeoutError:
                left += 1
            except OSError:
                pass
            sock.close()
        expect(left == 0, f"{left} of 700 are still open")
        server.check()


@case(
    "slow: a TLS hello that stops, and a handshake that stops after it",
    "an alert or an end within 10 s and a little",
    "waiting",
)
def slow_hello(ctx):
    from cases.tls import hello

    with ctx.fresh(listeners=("http", "echo-tls", "https")) as server:
        whole = hello(ctx)
        socks = []
        for sent in [whole[:3], whole[:-1], whole]:
            for listener in ["echo-tls", "https"]:
                sock = connect(server.addr(listener))
                sock.sendall(sent)
                socks.append(sock)
        for sock in socks:
            seconds_to_end(sock, HANDSHAKE_SECONDS_MAX + LATE_SECONDS_MAX)
            sock.close()
        server.check()


def trickle(sock, piece, until_answered=False):
    """Sends `piece` every 0.3 s until the server ends the connection, or answers if `until_answered`; for 10 s
    at most. Returns how many seconds it took."""
    begun = time.monotonic()
    sock.settimeout(0.3)
    try:
        while time.monotonic() - begun < 10:
            sock.sendall(piece)
            try:
                if not sock.recv(4096) or until_answered:
                    break
            except TimeoutError:
                pass
    except ConnectionError:
        pass
    return time.monotonic() - begun


@case(
    "slow: a message of a byte now and then, --message-seconds-max 2",
    "1008, 1002 or an end, in time",
    "waiting",
)
def trickled_message(ctx):
    with ctx.fresh("--message-seconds-max", "2") as server:
        with WebSocket(server.addr()) as socket:
            socket.send(frame(BINARY, b"", fin=False))
            # The answer is a close.
            seconds = trickle(socket.sock, frame(CONTINUATION, b"a", fin=False), until_answered=True)
            expect(seconds < 2 + LATE_SECONDS_MAX, f"still open after {seconds:.1f} s")
        server.check()


def trickled(name, listener, first):
    def run(ctx):
        with ctx.fresh("--message-seconds-max", "2", listeners=PLAIN) as server:
            with connect(server.addr(listener)) as sock:
                sock.sendall(first)
                seconds = trickle(sock, b"a")
            expect(seconds < 2 + LATE_SECONDS_MAX, f"still open after {seconds:.1f} s")
            server.check()

    add_case(f"slow: {name}, --message-seconds-max 2", "an end in time", run, "waiting")


trickled("a message to sink of a byte now and then", "sink", struct.pack("<I", 1000))
trickled("a frame of a byte now and then", "http", upgrade() + frame(BINARY, length=1000))


def unread(name, service, opening, seconds_max=2):
    """A client that has much to read, and reads nothing. Its connection is reset, and nothing of it stays in the
    kernel."""

    def run(ctx):
        with ctx.fresh("--message-seconds-max", str(seconds_max), listeners=PLAIN) as server:
            with connect(server.addr(service), receive_bytes=65536) as sock:
                port, mine = server.addr(service)[1], sock.getsockname()[1]
                sock.sendall(opening)
                # Over WebSocket the closing handshake takes up to 5 s more.
                deadline = time.monotonic() + seconds_max + 5 + LATE_SECONDS_MAX
                held = None
                while time.monotonic() < deadline:
                    held = [
                        (state, queued)
                        for local, remote, state, queued, _ in tcp_table()
                        if (local, remote) == (port, mine)
                    ]
                    if not held and time.monotonic() > deadline - seconds_max - 5 - LATE_SECONDS_MAX + 1:
                        return
                    time.sleep(0.2)
            expect(False, f"the server's socket is still there: (state, bytes queued) {held}")

    add_case(f"unread: {name}", "a reset, and no bytes left in the kernel", run, "waiting")


unread("source over TCP", "source", struct.pack("<III", 0xFFFFFFFF, MIB, 1))
unread("short messages of source over TCP", "source", struct.pack("<III", 0xFFFFFFFF, 10, 1000))
unread("source over WebSocket", "http", upgrade("/source?bytes=1048576"))
unread("echo over WebSocket", "http", upgrade("/echo") + frame(BINARY, bytes(12 * MIB), mask=NO_MASK))


@case("unread: requests without end, whose answers nobody reads", "a reset within 10 s and a little", "waiting")
def unread_answers(ctx):
    with ctx.fresh() as server:
        with connect(server.addr(), receive_bytes=65536) as sock:
            sock.setblocking(False)
            requests = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 1000
            begun = time.monotonic()
            at = 0
            try:
                while time.monotonic() - begun < 10 + 5 + LATE_SECONDS_MAX:
                    try:
                        at = (at + sock.send(requests[at:])) % len(requests)
                    except BlockingIOError:
                        time.sleep(0.1)
            except ConnectionError:
                server.check()
                return
        expect(False, f"still open after {time.monotonic() - begun:.1f} s")


@case(
    "unread: echo over TCP, --idle-seconds-max 1 --message-seconds-max 1",
    "an end of the connection",
    "waiting",
)
def unread_echo(ctx):
    with ctx.fresh(*BRIEF, listeners=PLAIN) as server:
        with connect(server.addr("echo"), receive_bytes=65536) as sock:
            port, mine = server.addr("echo")[1], sock.getsockname()[1]
            sock.setblocking(False)
            deadline = time.monotonic() + 2 + LATE_SECONDS_MAX
            while time.monotonic() < deadline:
                try:
                    while True:
                        sock.send(bytes(1 << 20))
                except BlockingIOError:
                    time.sleep(0.1)
                except ConnectionError:
                    break
            held = [queued for local, remote, _, queued, _ in tcp_table() if (local, remote) == (port, mine)]
            expect(not held, f"still open after {2 + LATE_SECONDS_MAX} s, {held} bytes queued")


@case(
    "unread: a WebSocket whose client answers no close",
    "an end within the closing handshake's 5 s",
    "waiting",
)
def close_unanswered(ctx):
    with ctx.fresh() as server:
        with WebSocket(server.addr(), seconds_max=10) as socket:
            socket.send(frame(3))
            closing = socket.receive()
            expect(closing.close_code == 1002, f"a close of {closing.close_code}")
            begun = time.monotonic()
            try:
                socket.receive()
            except Ended:
                pass
            expect(time.monotonic() - begun < 5 + LATE_SECONDS_MAX, "open after the time for it")
