"""More connections than the limits allow, from one address or many; and descriptors that run out."""

import resource
import time

from harness import Failed, connect, expect, read_to_end
from registry import case
from websocket import Ended, WebSocket


def silent(server, count, listener="http"):
    """Opens connections that send nothing. Returns those that the server does not reset at once."""
    socks = []
    for _ in range(count):
        try:
            socks.append(connect(server.addr(listener)))
        except ConnectionError:
            pass
    return socks


def close(socks):
    for sock in socks:
        sock.close()


@case("connections: all taken by silent clients", "/health by --admin within 0.5 s", "alone")
def admin(ctx):
    with ctx.fresh("--connections-max", "10", listeners=("http", "admin")) as server:
        socks = silent(server, 60)
        time.sleep(0.2)
        seconds = server.health(2, "admin")
        close(socks)
        expect(seconds < 0.5, f"{seconds:.2f} s")
        server.check()


@case(
    "connections: all taken by WebSockets",
    "/health by --admin within 0.5 s, and another client once one has gone",
    "alone",
)
def admin_during_websockets(ctx):
    with ctx.fresh("--connections-max", "10", listeners=("http", "admin")) as server:
        sockets = [WebSocket(server.addr()) for _ in range(10)]
        waiting = silent(server, 20)
        seconds = server.health(2, "admin")
        expect(seconds < 0.5, f"{seconds:.2f} s")
        for socket in sockets:
            socket.echo()
        close(waiting)
        close(sockets)
        server.check()


@case("connections: a flood of the admin listener itself", "the other listeners serve", "alone")
def admin_flood(ctx):
    with ctx.fresh("--connections-max", "10", listeners=("http", "admin")) as server:
        socks = silent(server, 60, "admin")
        server.health(2)
        close(socks)


@case("connections: 3,000 connections at once that go at once", "/health afterwards", "alone")
def flood(ctx):
    with ctx.fresh() as server:
        for _ in range(3):
            close(silent(server, 1000))
        server.check()


@case("connections: two workers with four each, and eight clients", "an echo for each within 3 s", "alone")
def shared_by_workers(ctx):
    with ctx.fresh("--workers", "2", "--connections-max", "4") as server:
        for attempt in range(5):
            sockets = []
            try:
                for n in range(8):
                    sockets.append(WebSocket(server.addr(), seconds_max=3))
                    sockets[-1].echo()
            except (OSError, Failed) as error:
                raise Failed(f"the client {n + 1}, attempt {attempt + 1}: {error!r}") from error
            finally:
                close(sockets)
            time.sleep(0.1)


PER_ADDRESS = ("--connections-per-address-max", "8")


@case(
    "addresses: 30 connections from one address, whose limit is 8",
    "8 that work, and 22 that are reset at once",
    "alone",
)
def per_address(ctx):
    with ctx.fresh(*PER_ADDRESS) as server:
        sockets, refused = [], 0
        for _ in range(30):
            try:
                sockets.append(WebSocket(server.addr(), seconds_max=2))
            except (Ended, ConnectionError):
                refused += 1
            except Failed as failure:
                # A refusal with a status is allowed too.
                expect(" 429 " in str(failure) or " 503 " in str(failure), failure)
                refused += 1
        for socket in sockets:
            socket.echo()
        expect((len(sockets), refused) == (8, 22), f"{len(sockets)} and {refused}")
        other = WebSocket(server.addr(), source="127.0.0.2")
        other.echo()
        close([*sockets, other])
        time.sleep(0.2)
        server.check()


@case("addresses: a flood from one address", "another address is served within 0.5 s", "alone")
def flood_of_one_address(ctx):
    with ctx.fresh(*PER_ADDRESS, "--connections-max", "20", listeners=("http", "echo")) as server:
        socks = silent(server, 200, "echo")
        begun = time.monotonic()
        with WebSocket(server.addr(), source="127.0.0.3", seconds_max=3) as socket:
            socket.echo()
        seconds = time.monotonic() - begun
        expect(seconds < 0.5, f"{seconds:.2f} s")
        close(socks)


@case("addresses: connections that have ended count no more", "200 connections, one after the other", "alone")
def per_address_given_back(ctx):
    with ctx.fresh("--connections-per-address-max", "2") as server:
        for n in range(200):
            try:
                with WebSocket(server.addr(), seconds_max=2) as socket:
                    socket.echo()
                    socket.send(b"\x88\x80\0\0\0\0")
                    read_to_end(socket.sock, 2)
            except (OSError, Failed) as error:
                raise Failed(f"connection {n + 1}: {error}") from error
            time.sleep(0.002)


def few_descriptors(server, spare):
    server.limit(resource.RLIMIT_NOFILE, server.descriptors() + spare)


@case(
    "descriptors: used up by 60 clients where there are 20",
    "those that are accepted work, and the server is healthy once they go",
    "alone",
)
def descriptors(ctx):
    with ctx.fresh(listeners=("http", "echo")) as server:
        server.health()
        few_descriptors(server, 20)
        socks = silent(server, 60, "echo")
        time.sleep(0.5)
        before = server.processor_seconds()
        socks[0].sendall(b"well")
        expect(socks[0].recv(10) == b"well", "the first gets no echo")
        time.sleep(1)
        busy = server.processor_seconds() - before
        close(socks)
        expect(busy < 0.2, f"{busy:.2f} s of processor time within 1 s of waiting")
        time.sleep(0.3)
        expect(server.health() < 1, "/health is slow")
        server.check()


@case("descriptors: used up and free again for 3 s", "at most 20 lines of log, and a healthy server", "alone")
def descriptors_flapping(ctx):
    with ctx.fresh(listeners=("http", "echo")) as server:
        server.health()
        few_descriptors(server, 5)
        lines, until = server.log().count("\n"), time.monotonic() + 3
        while time.monotonic() < until:
            socks = silent(server, 8, "echo")
            time.sleep(0.02)
            close(socks)
            time.sleep(0.02)
        lines = server.log().count("\n") - lines
        time.sleep(0.3)
        server.check()
        expect(lines <= 20, f"{lines} lines in 3 s")
