"""Bytes that are not TLS, or violate it: each is answered by an alert, and no connection hangs."""

import shutil
import ssl
import struct
import subprocess
import time

from harness import OVER_TLS, Failed, connect, expect, read_to_end, reset
from registry import add_case, case

ALL = ("http", *OVER_TLS)
HANDSHAKE, ALERT, APPLICATION, CHANGE_CIPHER = 22, 21, 23, 20


def server(ctx):
    return ctx.server(listeners=ALL)


def record(kind, payload, version=b"\3\1", length=None):
    return bytes([kind]) + version + struct.pack(">H", len(payload) if length is None else length) + payload


def client(ctx, **how):
    """A TLS session of Python, and the two buffers that its bytes pass through."""
    context = ssl.create_default_context(cafile=str(ctx.setup.cert))
    for name, value in how.pop("context", {}).items():
        setattr(context, name, value)
    if alpn := how.pop("alpn", None):
        context.set_alpn_protocols(alpn)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return context.wrap_bio(incoming, outgoing, server_hostname="localhost"), incoming, outgoing


def hello(ctx, **how):
    """The ClientHello of a well-behaved client, in a record."""
    session, _, outgoing = client(ctx, **how)
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def records(received):
    while len(received) >= 5:
        length = struct.unpack(">H", received[3:5])[0]
        yield received[0], received[5 : 5 + length]
        received = received[5 + length :]


def alerts(received):
    """The descriptions of the alerts among these records. None stands for an encrypted alert, which is
    recognised by its length: two bytes, a type, and a tag of 16."""
    seen = [payload[1] for kind, payload in records(received) if kind == ALERT and len(payload) == 2]
    return seen + [None for kind, payload in records(received) if kind == APPLICATION and len(payload) == 19]


def told(name, make, *descriptions, listener="echo-tls"):
    """Bytes instead of a handshake. They are answered by an alert, and the stream ends."""

    def run(ctx):
        begun = time.monotonic()
        with connect(server(ctx).addr(listener)) as sock:
            try:
                sock.sendall(make(ctx))
            except ConnectionError:
                pass
            answer = read_to_end(sock, 4)
        seen = alerts(answer)
        expect(len(seen) == 1, f"alerts {seen} in {answer[:40]!r} after {time.monotonic() - begun:.1f} s")
        expect(not descriptions or seen[0] in (None, *descriptions), f"alert {seen[0]}")

    expects = f"alert {' or '.join(map(str, descriptions))}" if descriptions else "an alert"
    add_case(f"tls: {name}", f"{expects}, then the end of the stream", run)


def handshake_message(kind, length, body=b""):
    return bytes([kind]) + length.to_bytes(3, "big") + body


told("bytes that mean nothing", lambda _: bytes(range(200, 256)) * 20)
told("plain text", lambda _: b"hello, is anybody there?\n" * 4)
told("zeros", lambda _: bytes(500))
told("a record of a type that is not there", lambda _: record(99, b"abc"))
told("a record of 18,433 bytes", lambda _: record(HANDSHAKE, bytes(18_433)), 22, 50, 10, 47)
told(
    "a record that announces 65,535 bytes",
    lambda _: record(HANDSHAKE, b"\1" * 100, length=65_535),
    22,
    50,
    47,
)
told("a record of version 2.0", lambda _: record(HANDSHAKE, b"\1\0\0\0", version=b"\2\0"), 70, 47, 50)
told("application data first", lambda _: record(APPLICATION, b"hello"), 10)
told("a Finished first", lambda _: record(HANDSHAKE, handshake_message(20, 12, bytes(12))), 10)
told("a ServerHello", lambda _: record(HANDSHAKE, handshake_message(2, 38, bytes(38))), 10, 47, 50)
told("an empty handshake record", lambda _: record(HANDSHAKE, b"") * 5)
told("a hello of 16 MiB, announced", lambda _: record(HANDSHAKE, handshake_message(1, 0xFFFFFF, bytes(1000))))
told(
    "a hello of 16 MiB, of which 100 KiB come",
    lambda _: record(HANDSHAKE, handshake_message(1, 0xFFFFFF, bytes(16_000)))
    + record(HANDSHAKE, bytes(16_000)) * 6,
)
told(
    "a hello of 64 KiB of nothing",
    lambda _: record(HANDSHAKE, handshake_message(1, 65_000, bytes(16_000)))
    + record(HANDSHAKE, bytes(16_334)) * 3,
)
told("a hello of zeros", lambda _: record(HANDSHAKE, handshake_message(1, 200, bytes(200))))
told(
    "a hello that goes on with nonsense",
    lambda ctx: record(HANDSHAKE, handshake_message(1, 200, hello(ctx)[9:60].ljust(200, b"\xff"))),
)
told("a hello in which a length is wrong", lambda ctx: (lambda h: h[:43] + b"\xff" + h[44:])(hello(ctx)))
told(
    "a hello for TLS 1.1 at most",
    lambda _: record(
        HANDSHAKE, handshake_message(1, 43, b"\3\2" + bytes(32) + b"\0" + b"\0\2\xc0\x13" + b"\1\0" + b"\0\0")
    ),
    70,
    40,
    47,
    50,
)
told(
    "no cipher in common",
    lambda _: record(
        HANDSHAKE, handshake_message(1, 43, b"\3\3" + bytes(32) + b"\0" + b"\0\2\0\1" + b"\1\0" + b"\0\0")
    ),
    40,
    47,
    70,
    109,
)
told("h2 alone by ALPN", lambda ctx: hello(ctx, alpn=["h2"]), 120, listener="https")
told("an SSLv2 hello", lambda _: b"\x80\x2e\1\0\2\0\x15\0\0\0\x10" + bytes(40))
told("1,000 warnings first", lambda _: record(ALERT, b"\1\x64") * 1000)
told("1,000 empty alerts", lambda _: record(ALERT, b"") * 1000)
told("100 ChangeCipherSpecs first", lambda _: record(CHANGE_CIPHER, b"\1") * 100)
told("bytes that are not a record behind the hello", lambda ctx: hello(ctx) + b"\xff" * 100)
told(
    "a part of a message behind the hello, in its record",
    lambda ctx: record(HANDSHAKE, hello(ctx)[5:] + b"\1\0\0"),
)
told("a second hello in the record of the hello", lambda ctx: record(HANDSHAKE, hello(ctx)[5:] * 2))
told(
    "the same with TLS 1.2",
    lambda ctx: record(HANDSHAKE, hello(ctx, context={"maximum_version": ssl.TLSVersion.TLSv1_2})[5:] * 2),
)
told(
    "bytes that are not a record behind the hello, with TLS 1.2",
    lambda ctx: hello(ctx, context={"maximum_version": ssl.TLSVersion.TLSv1_2}) + b"\xff" * 100,
)
told("a second hello behind the hello", lambda ctx: hello(ctx) * 2)
told(
    "application data behind the hello, in the clear",
    lambda ctx: hello(ctx) + record(APPLICATION, b"GET / HTTP/1.1"),
)
told(
    "a warning in each gap of a hello",
    lambda ctx: b"".join(
        record(HANDSHAKE, bytes([byte])) + record(ALERT, b"\1\x64") for byte in hello(ctx)[5:]
    ),
)


@case("tls: a fatal alert of the client's in place of a hello", "an end of the stream at once")
def fatal_alert(ctx):
    with connect(server(ctx).addr("echo-tls")) as sock:
        sock.sendall(record(ALERT, b"\2\x28"))
        read_to_end(sock, 2)


@case("tls: a request in the clear where HTTPS is spoken", "400 and a sentence")
def plain_http(ctx):
    with connect(server(ctx).addr("https")) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = read_to_end(sock)
    expect(answer.startswith(b"HTTP/1.1 400 ") and b"TLS" in answer, answer[:80])


@case("tls: a hello in single bytes, each in a record", "a ServerHello")
def hello_in_bytes(ctx):
    with connect(server(ctx).addr("echo-tls")) as sock:
        sock.sendall(b"".join(record(HANDSHAKE, bytes([byte])) for byte in hello(ctx)[5:]))
        answer = sock.recv(65536)
    expect(answer[:1] == b"\x16", f"{answer[:20]!r}")


@case(
    "tls: a hello that is cut off anywhere, by an end of the stream",
    "an end each time, with nothing or an alert",
)
def cut_off(ctx):
    whole = hello(ctx)
    for cut in range(0, len(whole), 7):
        with connect(server(ctx).addr("https")) as sock:
            sock.sendall(whole[:cut])
            sock.shutdown(1)
            answer = read_to_end(sock, 3)
        expect(answer == b"" or alerts(answer), f"{answer[:20]!r} when cut at {cut}")


@case("tls: 300 hellos whose clients reset", "a healthy server")
def hellos_and_resets(ctx):
    whole = hello(ctx)
    for n in range(300):
        sock = connect(server(ctx).addr("https"))
        sock.sendall(whole[: n * 7 % len(whole) + 1])
        reset(sock)


class Session:
    """A TLS connection whose bytes can be read, and replaced."""

    def __init__(self, ctx, listener, version=None):
        context = {"minimum_version": version, "maximum_version": version} if version else {}
        self.tls, self.incoming, self.outgoing = client(ctx, context=context)
        self.sock = connect(server(ctx).addr(listener), 4)
        self.drive(self.tls.do_handshake)

    def drive(self, what, *args):
        while True:
            try:
                result = what(*args)
                self.sock.sendall(self.outgoing.read())
                return result
            except ssl.SSLWantReadError:
                self.sock.sendall(self.outgoing.read())
                part = self.sock.recv(65536)
                if part:
                    self.incoming.write(part)
                else:
                    self.incoming.write_eof()

    def sealed(self, payload):
        self.tls.write(payload)
        return self.outgoing.read()

    def end(self):
        """Reads until the server ends. Returns the alert that it sent."""
        try:
            while self.drive(self.tls.read, 65536):
                pass
            return "close_notify"
        except ssl.SSLZeroReturnError:
            return "close_notify"
        except (ssl.SSLEOFError, ConnectionError) as error:
            return f"no alert ({error.__class__.__name__})"
        except ssl.SSLError as error:
            return error.reason or str(error)
        except TimeoutError as error:
            raise Failed("a hang: neither an alert nor an end") from error


VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def broken_later(name, make, *expected):
    def run(ctx):
        for shown, version in VERSIONS.items():
            session = Session(ctx, "echo-tls", version)
            with session.sock:
                session.sock.sendall(make(session))
                reason = session.end()
            expect(any(word in reason for word in expected), f"{reason}, TLS {shown}")

    add_case(f"tls: {name}, later", " or ".join(expected), run)


def flipped(session):
    sealed = session.sealed(b"a message")
    return sealed[:-1] + bytes([sealed[-1] ^ 1])


TLS12 = b"\3\3"
broken_later("a record whose last bit is wrong", flipped, "BAD_RECORD_MAC", "DECRYPT")
broken_later("a record that comes twice", lambda s: s.sealed(b"once") * 2, "BAD_RECORD_MAC", "DECRYPT")
broken_later(
    "a record of random bytes",
    lambda s: record(APPLICATION, bytes(range(100)), TLS12),
    "BAD_RECORD_MAC",
    "DECRYPT",
)
broken_later(
    "a record that is too long",
    lambda s: record(APPLICATION, bytes(18_500), TLS12),
    "RECORD_OVERFLOW",
    "BAD_RECORD_MAC",
    "DECODE",
)
broken_later(
    "a record that is too short to be sealed",
    lambda s: record(APPLICATION, b"abc", TLS12),
    "BAD_RECORD_MAC",
    "DECRYPT",
    "DECODE",
)
broken_later(
    "a hello in the clear",
    lambda s: record(HANDSHAKE, handshake_message(1, 100, bytes(100)), TLS12),
    "UNEXPECTED",
    "BAD_RECORD_MAC",
    "DECRYPT",
    "DECODE",
)
broken_later(
    "plain text",
    lambda s: b"GET / HTTP/1.1\r\n\r\n" * 10,
    "DECODE",
    "UNEXPECTED",
    "BAD_RECORD_MAC",
    "RECORD",
    "VERSION",
    "ILLEGAL",
)
broken_later(
    "a flood of alerts in the clear",
    lambda s: record(ALERT, b"\1\x64", TLS12) * 1000,
    "UNEXPECTED",
    "BAD_RECORD_MAC",
    "DECRYPT",
    "DECODE",
    "close_notify",
)


@case("tls: the client ends by close_notify", "its echo, and a close_notify back")
def close_notify(ctx):
    for shown, version in VERSIONS.items():
        session = Session(ctx, "echo-tls", version)
        with session.sock:
            session.drive(session.tls.write, b"there and back")
            expect(session.drive(session.tls.read, 100) == b"there and back", "another echo")
            try:
                session.tls.unwrap()
            except ssl.SSLError:
                pass
            session.sock.sendall(session.outgoing.read())
            answer = read_to_end(session.sock, 3)
        expect(answer[:1] in (b"\x15", b"\x17"), f"{answer[:20]!r}, TLS {shown}")


@case("tls: the client's stream ends without a close_notify", "an end of the stream")
def truncated(ctx):
    for version in VERSIONS.values():
        session = Session(ctx, "echo-tls", version)
        with session.sock:
            session.drive(session.tls.write, b"there and")
            session.sock.shutdown(1)
            read_to_end(session.sock, 3)


@case("tls: a record that is cut off at each of its bytes", "an end of the stream each time")
def cut_records(ctx):
    for cut in [1, 4, 5, 6, 20, 25]:
        session = Session(ctx, "https")
        with session.sock:
            session.sock.sendall(session.sealed(b"GET /health HTTP/1.1\r\n")[:cut])
            session.sock.shutdown(1)
            read_to_end(session.sock, 3)


@case("tls: renegotiation (TLS 1.2)", "a refusal, and no hang")
def renegotiation(ctx):
    expect(shutil.which("openssl"), "no openssl")
    host, port = server(ctx).addr("echo-tls")
    # openssl renegotiates when it reads an R at the start of a line.
    asked = subprocess.Popen(
        ["openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_2", "-servername", "localhost"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        time.sleep(0.5)
        asked.stdin.write(b"R\n")
        asked.stdin.flush()
        try:
            answer, _ = asked.communicate(timeout=4)
        except subprocess.TimeoutExpired:
            # The warning no_renegotiation leaves the connection open, and openssl waits.
            raise Failed("a hang")
    finally:
        asked.kill()
        asked.wait()
    expect(b"RENEGOTIATING" in answer, "openssl did not ask")


@case("tls: 2,000 records of one byte at once", "their echo")
def tiny_records(ctx):
    session = Session(ctx, "echo-tls")
    with session.sock:
        session.sock.sendall(b"".join(session.sealed(b"x") for _ in range(2000)))
        back = 0
        while back < 2000:
            back += len(session.drive(session.tls.read, 65536))
    expect(back == 2000, f"{back} bytes")
