"""The drain: every kind of client is told at once, and the deadline holds."""

import signal
import time

from harness import CUT_OFF_STATUS, OVER_TLS, PLAIN, ask_for_health, connect, expect, read_to_end
from registry import add_case, case
from websocket import BINARY, CLOSE, CONTINUATION, WebSocket, close_frame, frame

# "At once" is within this time. The deadline is many times as long.
AT_ONCE_SECONDS = 1
DRAIN = ("--drain-seconds", "6")


def told(name, listener, prepare):
    """A client that is told of the end as soon as the signal comes. The server exits at once then."""

    def run(ctx):
        with ctx.fresh(*DRAIN, listeners=(*PLAIN, *OVER_TLS)) as server:
            client = prepare(ctx, server.addr(listener))
            time.sleep(0.2)
            begun = time.monotonic()
            server.signal(signal.SIGTERM)
            how = end_of(client)
            seconds = time.monotonic() - begun
            expect(seconds < AT_ONCE_SECONDS, f"{how} after {seconds:.1f} s")
            status = server.ended(8)
            seconds = time.monotonic() - begun
            expect(status == 0, f"an exit with {status}")
            expect(seconds < 2 * AT_ONCE_SECONDS, f"an exit after {seconds:.1f} s")

    add_case(
        f"drain: {name}",
        f"an end, or a close of 1001, within {AT_ONCE_SECONDS} s, and an exit with 0",
        run,
        "waiting",
    )


def drain(server, clients):
    """Sends SIGTERM, and waits until all clients are told and the server has exited. Returns the exit status,
    and how many seconds it took."""
    time.sleep(0.2)
    begun = time.monotonic()
    server.signal(signal.SIGTERM)
    for client in clients:
        end_of(client)
    status = server.ended(5)
    return status, time.monotonic() - begun


def end_of(client):
    """Waits until the client is told, and closes it. Returns how it was told."""
    if isinstance(client, WebSocket):
        while (closing := client.receive()).opcode != CLOSE:
            pass
        client.send(close_frame(1001))
        client.close()
        expect(closing.close_code == 1001, f"a close of {closing.close_code}")
        return "1001"
    try:
        return repr(read_to_end(client, 9)[:40])
    finally:
        client.close()


def sent(payload):
    def prepare(_, addr):
        sock = connect(addr)
        sock.sendall(payload)
        return sock

    return prepare


def websocket(*frames, path="/echo", is_tls=False):
    def prepare(ctx, addr):
        socket = WebSocket(addr, path, tls=ctx.tls if is_tls else None, seconds_max=9)
        socket.send(*frames)
        return socket

    return prepare


def answered(behind):
    """A client whose first request was answered."""

    def connected(ctx, addr):
        sock = connect(addr, 9)
        ask_for_health(sock)
        sock.sendall(behind)
        return sock

    return connected


def over_tls(ctx, addr):
    return ctx.tls.wrap_socket(connect(addr, 9), server_hostname="localhost")


def half_hello(ctx, addr):
    from cases.tls import hello

    return sent(hello(ctx)[:100])(ctx, addr)


def owes_a_body(_, addr):
    """A client whose request was answered before all of its body was sent."""
    sock = connect(addr, 9)
    sock.sendall(b"POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\na part")
    answer = sock.recv(4096)
    expect(answer.startswith(b"HTTP/1.1 405 "), answer[:60])
    return sock


for listener in (*PLAIN, *OVER_TLS):
    told(f"a client that has said nothing to {listener}", listener, sent(b""))
for listener in OVER_TLS:
    told(f"a client of {listener} after the handshake", listener, over_tls)
told("half a head", "http", sent(b"GET /health HTTP/1.1\r\nHo"))
told("half a head behind a request", "http", answered(b"GET /health HTTP/1.1\r\nHo"))
told("a client that was answered and keeps its connection", "http", answered(b""))
told("a client that was answered and owes a part of a body", "http", owes_a_body)
told("half a hello", "https", half_hello)
told("half a message to sink", "sink", sent(b"\x64\0\0\0abc"))
told("half a request to source", "source", sent(bytes(6)))
told("a WebSocket that is idle", "http", websocket())
told("a WebSocket that is idle, over TLS", "https", websocket(is_tls=True))
told("a WebSocket within a message", "http", websocket(frame(BINARY, b"a", fin=False)))
told("a WebSocket within a frame", "http", websocket(frame(BINARY, length=70_000) + bytes(100)))
told(
    "a WebSocket to sink within a message",
    "http",
    websocket(frame(BINARY, b"a", fin=False), frame(CONTINUATION, b"b", fin=False), path="/sink"),
)
told("a WebSocket from a source without an end", "http", websocket(path="/source?bytes=60000&batch=1000"))
told(
    "a WebSocket that asks for more than can be sent",
    "http",
    websocket(frame(BINARY, b"\xff\xff\xff\xff\0\xe8\0\0\xe8\3\0\0"), path="/source"),
)


@case("drain: 300 clients of every kind", "each is told at once, and an exit with 0 within 3 s", "alone")
def many(ctx):
    with ctx.fresh(*DRAIN, listeners=PLAIN) as server:
        clients = [WebSocket(server.addr()) for _ in range(100)]
        clients += [connect(server.addr(name)) for name in PLAIN for _ in range(50)]
        status, seconds = drain(server, clients)
        expect(status == 0, f"an exit with {status}")
        expect(seconds < 3, f"an end after {seconds:.1f} s")


@case(
    "drain: a client that answers no close, --drain-seconds 2",
    f"an exit with {CUT_OFF_STATUS} by the deadline, and a line of log that says so",
    "waiting",
)
def cut_off(ctx):
    with ctx.fresh("--drain-seconds", "2") as server:
        with WebSocket(server.addr()) as socket:
            begun = time.monotonic()
            server.signal(signal.SIGTERM)
            status = server.ended(6)
            seconds = time.monotonic() - begun
            expect(socket.receive().close_code == 1001, "no close")
        expect(status == CUT_OFF_STATUS, f"an exit with {status}")
        expect(1.5 < seconds < 3.5, f"an exit after {seconds:.1f} s")
        expect("not ended in time" in server.log(), server.log().splitlines()[-1:])


@case("drain: clients that wait to be accepted", "each is told at once, and an exit with 0", "waiting")
def not_accepted(ctx):
    with ctx.fresh(*DRAIN, "--connections-max", "2") as server:
        clients = [WebSocket(server.addr()) for _ in range(2)]
        clients += [connect(server.addr()) for _ in range(5)]
        status, seconds = drain(server, clients)
        expect(status == 0 and seconds < 2, f"an exit with {status} after {seconds:.1f} s")


@case("drain: a second signal", "an exit with 143 at once", "waiting")
def second(ctx):
    with ctx.fresh("--drain-seconds", "20") as server:
        with WebSocket(server.addr()):
            server.signal(signal.SIGTERM)
            time.sleep(0.3)
            expect(server.is_alive(), "an end at the first")
            server.signal(signal.SIGTERM)
            status = server.ended(2)
        expect(status == 143, f"an exit with {status}")


@case("drain: SIGINT", "as SIGTERM", "waiting")
def interrupt(ctx):
    with ctx.fresh() as server:
        server.signal(signal.SIGINT)
        status = server.ended(3)
        expect(status == 0, f"an exit with {status}")


@case("drain: a message that is being sent is finished", "its echo, then the close of 1001", "waiting")
def finished(ctx):
    from websocket import NO_MASK, random_bytes

    payload = random_bytes(2 << 20)
    with ctx.fresh(*DRAIN) as server:
        with WebSocket(server.addr()) as socket:
            socket.send(frame(BINARY, payload, mask=NO_MASK))
            expect(socket.message() == payload, "another echo")
            server.signal(signal.SIGTERM)
            expect(socket.close_code() == 1001, "no close of 1001")
        expect(server.ended(5) == 0, "no exit with 0")


@case(
    "drain: --drain-notice-seconds 2",
    "503 from /health and new clients served for 2 s, then the listeners close",
    "waiting",
)
def notice(ctx):
    with ctx.fresh(*DRAIN, "--drain-notice-seconds", "2") as server:
        with WebSocket(server.addr(), seconds_max=8) as socket:
            server.signal(signal.SIGTERM)
            time.sleep(0.5)
            with connect(server.addr()) as sock:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                answer = read_to_end(sock)
            expect(answer.startswith(b"HTTP/1.1 503 "), f"/health: {answer[:40]!r}")
            socket.echo()
            with WebSocket(server.addr(), seconds_max=8) as late:
                late.echo()
                begun = time.monotonic()
                expect(late.close_code() == 1001, "no close of 1001")
                expect(0.5 < time.monotonic() - begun < 4, "closed too early or too late")
            expect(socket.close_code() == 1001, "no close of 1001")
        status = server.ended(5)
        expect(status == 0, f"an exit with {status}")


@case("drain: --admin says 503 during the drain", "503", "waiting")
def admin(ctx):
    with ctx.fresh(*DRAIN, "--drain-notice-seconds", "3", listeners=("http", "admin")) as server:
        with WebSocket(server.addr()):
            server.signal(signal.SIGTERM)
            time.sleep(0.5)
            with connect(server.addr("admin")) as sock:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                answer = read_to_end(sock)
            expect(answer.startswith(b"HTTP/1.1 503 "), f"/health: {answer[:40]!r}")
