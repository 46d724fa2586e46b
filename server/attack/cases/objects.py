"""Objects: names that lead elsewhere, origins that fail, and many clients of one object."""

import os
import re
import signal
import socket
import struct
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from cases.http import get, status
from harness import MIB, connect, expect, read_to_end
from registry import add_case, case

HEAD_END = b"\r\n\r\n"
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"


class Origin:
    """A server that answers each request by `answer(sock, number)`, and counts them."""

    def __init__(self, answer):
        self.answer = answer
        self.count = 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = "http://127.0.0.1:{}/p".format(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return  # closed
            self.count += 1
            threading.Thread(target=self._serve, args=(sock, self.count), daemon=True).start()

    def _serve(self, sock, number):
        with sock:
            request = b""
            try:
                while HEAD_END not in request:
                    part = sock.recv(4096)
                    if not part:
                        return
                    request += part
                self.answer(sock, number)
            except OSError:
                pass  # the server has given up


@contextmanager
def serving(ctx, answer, *options, listeners=("http",)):
    """A server, and its origin."""
    origin = Origin(answer)
    try:
        with ctx.fresh("--origin", origin.url, *options, listeners=listeners) as server:
            yield server, origin
    finally:
        origin.listener.close()


def ask(server, target="/object/a", *headers):
    with connect(server.addr(), 20) as sock:
        sock.sendall(get(target, "Connection: close", *headers))
        return read_to_end(sock, 20)


def body(answer):
    return answer.partition(HEAD_END)[2]


def bytes_of(text):
    def answer(sock, number):
        sock.sendall(text if number == 1 else GOOD)

    return answer


def refused(what, text, expected):
    """An answer of the origin that is not passed on, and not kept."""

    def run(ctx):
        with serving(ctx, bytes_of(text)) as (server, origin):
            answer = ask(server)
            expect(status(answer) == expected, answer[:80])
            expect(ask(server).endswith(b"good"), "the failure was kept")
            expect(origin.count == 2, f"{origin.count} requests")
            server.check()

    add_case(f"objects: an origin {what}", f"{expected}, and the object afterwards", run)


def head(*lines):
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode("latin-1")


refused("that closes without an answer", b"", 502)
refused("that speaks another protocol", b"SSH-2.0-OpenSSH_9.6\r\n", 502)
refused("that answers 500", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", 502)
refused("that redirects", b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", 502)
refused("that announces two lengths", head("Content-Length: 4", "Content-Length: 5") + b"abcd", 502)
refused("that announces a length and chunks", head("Content-Length: 4", "Transfer-Encoding: chunked"), 502)
refused("that folds a header", head("A: b", " c", "Content-Length: 0"), 502)
refused("whose head has no end", b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000, 502)
refused("that announces 1 TB", head("Content-Length: 1099511627776"), 502)


def cut(what, text):
    """A body that ends too early. The client must not take it for the whole."""

    def run(ctx):
        def answer(sock, number):
            if number > 1:
                sock.sendall(GOOD)
                return
            sock.sendall(text[:1000])
            time.sleep(0.3)
            sock.sendall(text[1000:])

        with serving(ctx, answer) as (server, origin), connect(server.addr(), 20) as sock:
            sock.sendall(get("/object/a"))
            received, is_reset = b"", False
            try:
                while part := sock.recv(65536):
                    received += part
            except ConnectionError:
                is_reset = True
            expect(status(received) == 200, received[:80])
            expect(is_reset, f"an end after {len(received)} bytes")
            expect(ask(server).endswith(b"good"), "the failure was kept")

    add_case(f"objects: an origin whose {what}", "a reset, and the object afterwards", run)


cut("body is too short", head("Content-Length: 9000") + b"a" * 5000)
cut("chunks do not end", head("Transfer-Encoding: chunked") + b"1388\r\n" + b"a" * 5000 + b"\r\n")
cut("chunks are malformed", head("Transfer-Encoding: chunked") + b"1388\r\n" + b"a" * 5001 + b"\r\n0\r\n\r\n")


@case("objects: 10,000 clients of one missing object", "one request to the origin, and the object for each", "alone")
def many_clients(ctx):
    clients, whole = 10_000, os.urandom(1_000)
    asked, is_late = threading.Event(), threading.Event()
    # A busy machine takes a minute for the requests. The server waits for a whole object for 300 s at most.
    seconds_max = 180

    def answer(sock, _):
        sock.sendall(head(f"Content-Length: {len(whole)}"))
        at, deadline = 0, time.monotonic() + seconds_max
        # The server waits for more of an object for 10 s at most.
        while not asked.wait(3):
            if time.monotonic() > deadline:
                is_late.set()
                break
            sock.sendall(whole[at : at + 1])
            at += 1
        sock.sendall(whole[at:])

    # Either worker may get all of them.
    options = ("--workers", "2", "--connections-max", clients + 100)
    with serving(ctx, answer, *options, listeners=("http", "admin")) as (server, origin):
        socks = []
        try:
            for _ in range(clients):
                socks.append(connect(server.addr(), 60))
                socks[-1].sendall(get("/object/a", "Connection: close"))
                expect(not is_late.is_set(), f"only {len(socks)} clients have asked within {seconds_max} s")
            # The origin does not end its answer before: everybody who has asked waits for it.
            deadline, expected = time.monotonic() + 60, {"miss": 1, "joined": clients - 1}
            while found(server) != expected and time.monotonic() < deadline:
                time.sleep(0.05)
            requests, was_late = found(server), is_late.is_set()
            asked.set()
            expect(requests == expected or not was_late, f"after {seconds_max} s, only these were counted: {requests}")
            expect(requests == expected, requests)
            for sock in socks:
                expect(body(read_to_end(sock, 60)) == whole, "another object")
        finally:
            asked.set()
            for sock in socks:
                sock.close()
        expect(origin.count == 1, f"{origin.count} requests")


def found(server):
    """How many requests for objects there were, by what they found."""
    with connect(server.addr("admin")) as sock:
        sock.sendall(get("/metrics", "Connection: close"))
        text = read_to_end(sock).decode()
    values = re.findall(r'^owned_io_object_requests_total\{found="(\w+)"\} (\d+)$', text, re.M)
    return {name: int(value) for name, value in values if value != "0"}


@case("objects: an origin that never answers", "504 after 10 s", "waiting")
def silent_origin(ctx):
    with serving(ctx, lambda *_: time.sleep(30)) as (server, _):
        begun = time.monotonic()
        answer = ask(server)
        expect(status(answer) == 504, answer[:80])
        expect(9 < time.monotonic() - begun < 14, f"{time.monotonic() - begun:.1f} s")


@case("objects: an origin that is not there", "502, and the object once it is")
def absent_origin(ctx):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ctx.fresh("--origin", f"http://127.0.0.1:{port}") as server:
        expect(status(ask(server)) == 502, "another status")


@case("objects: a drain while an object arrives", "the whole object for each, and exit status 0", "waiting")
def drained(ctx):
    whole = os.urandom(200_000)

    def answer(sock, _):
        sock.sendall(head(f"Content-Length: {len(whole)}"))
        for at in range(0, len(whole), 20_000):
            sock.sendall(whole[at : at + 20_000])
            time.sleep(0.3)

    # The client that has missed leaves. Its worker goes on for the clients of the other one.
    with serving(ctx, answer, "--workers", "2") as (server, _):
        first, *others = [connect(server.addr()) for _ in range(8)]
        first.sendall(get("/object/a"))
        time.sleep(0.3)
        for sock in others:
            sock.sendall(get("/object/a"))
        time.sleep(0.3)
        first.close()
        server.signal(signal.SIGTERM)
        for sock in others:
            with sock:
                expect(body(read_to_end(sock, 20)) == whole, "not the whole object")
        code = server.ended(5)
        expect(code == 0, f"exit status {code}")


@case("objects: 300 clients that ask for 1 MB each and do not read", "a bounded memory, and others served", "alone")
def unread(ctx):
    def answer(sock, _):
        sock.sendall(head(f"Content-Length: {MIB}") + b"a" * MIB)

    with serving(ctx, answer, "--object-memory-max", 64 * MIB, "--memory-max", 64 * MIB, "--connections-max", 500) as (
        server,
        _,
    ):
        socks = []
        for n in range(300):
            socks.append(connect(server.addr(), receive_bytes=4096))
            socks[-1].sendall(get(f"/object/{n}"))
        time.sleep(3)
        server.check()
        peak = server.peak_bytes()
        expect(peak < 64 * MIB + 128 * MIB, f"{peak / MIB:.0f} MiB")
        for sock in socks:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        time.sleep(0.5)
        answer = ask(server, "/object/later")
        expect(len(body(answer)) == MIB, answer[:80])


# A directory, whose names must not lead anywhere else.
def directory(ctx):
    path = Path(ctx.setup.dir) / "objects"
    if not path.exists():
        (path / "sub").mkdir(parents=True)
        (path / "a").write_text("good")
        (path / ".hidden").write_text("hidden")
        (path / "sub" / "b").write_text("below")
        (path / "out").symlink_to("/etc/passwd")
        (path / "zero").symlink_to("/dev/zero")
        os.mkfifo(path / "fifo")
    return ctx.server("--origin", path)


def name(what, text, *expected):
    def run(ctx):
        answer = ask(directory(ctx), f"/object/{text}")
        expect(status(answer) in expected, answer[:120])
        expect(b"root:" not in answer, "the passwords")

    add_case(f"objects: a name {what}", " or ".join(map(str, expected)), run)


name("of a file", "a", 200)
name("that is encoded", "%61", 200)
name("that climbs", "../../etc/passwd", 400)
name("that climbs, encoded", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", 400)
name("that climbs, encoded twice", "%252e%252e%252fetc", 404)
name("that climbs in overlong UTF-8", "%c0%ae%c0%ae%c0%afetc", 400)
name("that is absolute", "/etc/passwd", 400)
name("with a NUL", "a%00.txt", 400)
name("with a line end", "a%0d%0aX:%20y", 400)
name("with a backslash", "..%5c..%5cetc", 400)
name("of a hidden file", ".hidden", 400)
name("of a directory", "sub", 404)
name("in a directory", "sub/b", 400)
name("of a link that leads out", "out", 404)
name("of a link to a device", "zero", 404)
name("of a FIFO", "fifo", 404)
name("of 255 bytes", "n" * 255, 404)
name("of 256 bytes", "n" * 256, 400)
name("that is empty", "", 400)
name("with a query", "a?b=c", 400)
name("that is half encoded", "%6", 400)
