"""Requests that are malformed, too large, ambiguous, or not what they seem."""

import threading

from harness import connect, expect, read_to_end, reset
from registry import add_case, case
from websocket import BINARY, NO_MASK, frame, parse, upgrade


def say(ctx, request):
    """Sends bytes, and ends our side. Returns everything that the server answers until it ends the stream."""
    with connect(ctx.server().addr()) as sock:
        try:
            sock.sendall(request)
            sock.shutdown(1)
        except ConnectionError:
            pass  # the server has answered and closed before everything was sent
        return read_to_end(sock)


def status(answer):
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/1.") else None


def answers(name, request, *statuses):
    """A request that is answered exactly once, with one of these statuses. Then the stream ends: at once after a
    refusal, and because we have ended our side after another answer."""
    expects = f"{' or '.join(map(str, statuses))}, once"

    def run(ctx):
        answer = say(ctx, request)
        expect(status(answer) in statuses, answer[:80])
        expect(answer.count(b"HTTP/1.") == 1, f"several answers: {answer[:300]!r}")

    add_case(f"http: {name}", expects, run)


def get(target="/health", *headers, version="HTTP/1.1", method="GET", host="Host: attack"):
    lines = [f"{method} {target} {version}", *([host] if host else []), *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


# The request line.
answers("a well-formed request", get(), 200)
answers("HTTP/1.0", get(version="HTTP/1.0", host=None), 200)
answers("HTTP/2.0 in a request line", get(version="HTTP/2.0"), 400, 505)
answers("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, 505)
answers("HTTP/0.9", b"GET /health\r\n\r\n", 400)
answers("http/1.1 in lower case", get(version="http/1.1"), 400)
answers("no version", b"GET /health \r\nHost: a\r\n\r\n", 400)
answers("a target with a space", get("/hea lth"), 400)
answers("a NUL in the target", get("/hea\0lth"), 400)
answers("a NUL in the method", get(method="G\0T"), 400)
answers("a control character in the target", get("/\x07"), 400)
answers("a method in lower case", get(method="get"), 405)
answers("a method of 4,000 characters", get(method="G" * 4000), 405, 400, 501)
answers("no method", b" /health HTTP/1.1\r\nHost: a\r\n\r\n", 400)
answers("CONNECT", get("attack:443", method="CONNECT"), 501)
answers("OPTIONS *", get("*", method="OPTIONS"), 501)
answers("TRACE", get(method="TRACE"), 405, 501)
answers("the absolute form", get("http://attack/health"), 200)
answers("the absolute form, in capitals", get("HTTP://ATTACK/health"), 200)
answers("the absolute form without a path", get("http://attack"), 404)
answers("the absolute form of another scheme", get("ftp://attack/health"), 400, 404)
answers("a path that climbs", get("/../../etc/passwd"), 404, 400)
answers("a path with a percent-encoded NUL", get("/health%00"), 404, 400)
answers("a path with two slashes", get("//health"), 404, 400)
answers("a fragment in the target", get("/health#x"), 400, 404, 200)
answers("bytes of Latin 1 in the target", get("/h\xe9"), 400, 404)
answers("a thousand empty lines first", b"\r\n" * 1000 + get(), 200, 400)
answers(
    "a TLS hello where HTTP is spoken", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 60, 400
)
answers("the banner of SSH", b"SSH-2.0-OpenSSH_9.6\r\n\r\n", 400)
answers("bytes that mean nothing", bytes(range(128, 256)) * 8, 400)

# The headers.
answers("no Host", get(host=None), 400)
answers("two Hosts", get("/health", "Host: other"), 400)
answers("two Hosts that are alike", get("/health", "Host: attack"), 400)
answers("a Host with a space", get(host="Host: at tack"), 400)
answers("a Host with a user", get(host="Host: someone@attack/"), 400)
answers("a Host that is empty", get(host="Host:"), 200, 400)
answers("bare line feeds", b"GET /health HTTP/1.1\nHost: a\n\n", 200, 400)
answers("a bare carriage return in a value", get("/health", "X: a\rb"), 400)
answers("a NUL in a value", get("/health", "X: a\0b"), 400)
answers("a NUL in a name", get("/health", "X\0: a"), 400)
answers("a folded header", get("/health", "X: a\r\n b"), 400)
answers("a space before the colon", get("/health", "X : a"), 400)
answers("a header without a colon", get("/health", "nonsense"), 400)
answers("a header without a name", get("/health", ": a"), 400)
answers("a first header that begins with a space", b"GET /health HTTP/1.1\r\n Host: a\r\n\r\n", 400)
answers("64 headers more", get("/health", *[f"X-{n}: a" for n in range(64)]), 431)
answers("10,000 headers", get("/health", *[f"X-{n}: a" for n in range(10_000)]), 431)
answers("a header of 100 KiB", get("/health", "X: " + "a" * 102_400), 431)
answers("a target of 100 KiB", get("/" + "a" * 102_400), 431, 414)
answers("a name of 100 KiB", get("/health", "X" * 102_400 + ": a"), 431)
answers("a megabyte of one header line, without an end", b"GET / HTTP/1.1\r\nX: " + b"a" * 1_000_000, 431)

# One request must never be taken for two.
BEHIND = b"GET /health HTTP/1.1\r\nHost: b\r\n\r\n"
answers("a request behind one that is malformed", get(host=None) + BEHIND, 400)
answers("a request behind the last one", get("/health", "Connection: close") + BEHIND, 200)
answers("a request behind one of HTTP/1.0", get(version="HTTP/1.0") + BEHIND, 200)
answers(
    "a request behind one of HTTP/1.0 that is to be kept alive",
    get("/health", "Connection: keep-alive", version="HTTP/1.0") + BEHIND,
    200,
)
answers("chunks in HTTP/1.0", get("/health", "Transfer-Encoding: chunked", version="HTTP/1.0") + BEHIND, 400)
answers("a request behind an upgrade that is refused", upgrade(key=None) + BEHIND, 400)
answers(
    "a request behind an expectation that is not met",
    get("/health", "Expect: 100-continue", f"Content-Length: {len(BEHIND)}", method="POST") + BEHIND,
    405,
)
answers("a body that is too long", get("/health", "Content-Length: 1048577", method="POST") + BEHIND, 413)
answers(
    "a request in a body that is announced",
    get("/health", f"Content-Length: {len(BEHIND)}") + BEHIND,
    200,
    400,
)
answers(
    "a request in a chunk",
    get("/health", "Transfer-Encoding: chunked") + b"22\r\n" + BEHIND + b"\r\n0\r\n\r\n",
    200,
    400,
)
answers(
    "a length and chunks",
    get("/health", "Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + BEHIND,
    200,
    400,
)
answers("two lengths", get("/health", "Content-Length: 5", "Content-Length: 6") + b"12345" + BEHIND, 200, 400)
answers("a length below zero", get("/health", "Content-Length: -1") + BEHIND, 200, 400)
answers("a length with a sign", get("/health", "Content-Length: +5") + b"12345" + BEHIND, 200, 400)
answers("a length of twenty digits", get("/health", "Content-Length: 99999999999999999999") + BEHIND, 413)
answers(
    "a space before the colon of the encoding",
    get("/health", "Transfer-Encoding : chunked") + b"0\r\n\r\n" + BEHIND,
    400,
)
answers("a POST with a body", get("/echo", f"Content-Length: {len(BEHIND)}", method="POST") + BEHIND, 405)


@case("http: 10,000 requests at once", "as many answers, and no other")
def pipelined(ctx):
    with connect(ctx.server().addr()) as sock:
        sending = threading.Thread(target=sock.sendall, args=(get() * 9_999 + get("/health", "Connection: close"),))
        sending.start()
        answers = read_to_end(sock)
        sending.join()
    heads = answers.count(b"HTTP/1.1 200 OK\r\n")
    expect(heads == 10_000 and answers.count(b"HTTP/1.") == heads, f"{heads} answers of 200: {answers[-80:]!r}")
    expect(answers.count(b"\r\n\r\nok\n") == heads, f"other bodies: {answers[-80:]!r}")


@case("http: requests of every kind, one after the other on one connection", "an answer to each")
def kept_alive(ctx):
    with connect(ctx.server().addr()) as sock:
        for request, expected in [
            (get(), 200),
            (get("/nowhere"), 404),
            (get(method="HEAD"), 200),
            (get("/health", "Content-Length: 3", method="POST") + b"abc", 405),
            (get("/health", "Transfer-Encoding: chunked", method="PUT") + b"3\r\nabc\r\n0\r\n\r\n", 405),
            (b"\r\n" + get(), 200),
            (upgrade("/health"), 200),
            (upgrade(), 101),
        ]:
            sock.sendall(request)
            answer = sock.recv(4096)
            expect(status(answer) == expected, f"{answer[:80]!r} to {request[:60]!r}")
        sock.sendall(frame(BINARY, b"a") + frame(8, b"\x03\xe8"))
        frames = read_to_end(sock)
        first, used = parse(frames) or (None, 0)
        expect(first and first.payload == b"a", frames)
        expect(frames[used:] == b"\x88\x02\x03\xe8", f"{frames[used:]!r} for a close")

# Paths and queries.
answers("a path that is not there", get("/nowhere"), 404)
answers("a WebSocket's path without an upgrade", get("/echo"), 426)
for query in [
    "messages=1",
    "bytes=-1",
    "bytes=1x",
    "bytes=18446744073709551616",
    "bytes=16777217",
    "bytes=1&batch=0",
    "bytes=1&bytes=1",
    "bytes=1&more=1",
    "bytes=%31",
    "=",
    "bytes",
]:
    answers(f"a source of {query}", upgrade(f"/source?{query}"), 400)


@case("http: long names and values in queries", "400, and no more than 64 characters of them come back")
def long_queries(ctx):
    for query in ["/echo?hops=", "/source?bytes=", "/source?"]:
        answer = say(ctx, get(query + "a" * 7000))
        expect(status(answer) == 400, answer[:80])
        expect(b"a" * 64 in answer and b"a" * 65 not in answer, f"{len(answer)} bytes to {query}")


@case("http: HEAD", "the head of the answer to GET, with its length, and no body")
def head(ctx):
    answer = say(ctx, get(method="HEAD"))
    top, _, body = answer.partition(b"\r\n\r\n")
    expect(status(answer) == 200, answer[:80])
    expect(body == b"", f"a body: {body!r}")
    expect(b"content-length: 3" in top.lower(), top)


@case("http: HEAD of a path that is not there", "404 and no body")
def head_of_nothing(ctx):
    answer = say(ctx, get("/nowhere", method="HEAD"))
    expect(status(answer) == 404 and answer.endswith(b"\r\n\r\n"), answer[-80:])


@case("http: a head that comes byte by byte", "200")
def byte_by_byte(ctx):
    with connect(ctx.server().addr()) as sock:
        for byte in get("/health", "Connection: close"):
            sock.sendall(bytes([byte]))
        answer = read_to_end(sock)
    expect(status(answer) == 200, answer[:80])


@case("http: a connection without a byte that is ended", "an end, without an answer")
def nothing(ctx):
    expect(status(say(ctx, b"")) in (None, 400, 408), "an answer to nothing")


@case("http: a head that is cut off at each of its bytes", "an end of the stream each time")
def cut_off(ctx):
    head = upgrade()
    for cut in range(1, len(head), 3):
        answer = say(ctx, head[:cut])
        expect(status(answer) in (None, 400), f"{answer[:60]!r} when cut at {cut}")


@case("http: 500 connections that are reset within the head", "a healthy server")
def resets(ctx):
    for n in range(500):
        sock = connect(ctx.server().addr())
        sock.sendall(get()[: n % 30])
        reset(sock)


@case("http: 200 requests whose answer nobody reads", "a healthy server")
def answers_unread(ctx):
    for _ in range(200):
        sock = connect(ctx.server().addr())
        sock.sendall(get())
        reset(sock)


@case("http: frames behind an upgrade, in one segment", "101 and their echo")
def frames_behind_an_upgrade(ctx):
    with connect(ctx.server().addr()) as sock:
        sock.sendall(upgrade() + frame(BINARY, b"early") + frame(8, b"\x03\xe8"))
        answer = read_to_end(sock)
    head, _, frames = answer.partition(b"\r\n\r\n")
    expect(status(head) == 101, head[:60])
    first, used = parse(frames) or (None, 0)
    expect(first and first.payload == b"early", frames)
    expect(frames[used:] == b"\x88\x02\x03\xe8", f"{frames[used:]!r} for a close")


@case("http: a request behind an upgrade", "101, and it is taken for a frame that is wrong: 1002")
def request_behind_an_upgrade(ctx):
    answer = say(ctx, upgrade() + BEHIND)
    head, _, frames = answer.partition(b"\r\n\r\n")
    expect(status(head) == 101 and answer.count(b"HTTP/1.") == 1, answer[:200])
    closing = parse(frames)
    expect(closing and closing[0].close_code == 1002, frames)


@case("http: an upgrade with a body that hides frames", "400: nothing would separate them")
def upgrade_with_a_body(ctx):
    hidden = frame(BINARY, b"hidden", mask=NO_MASK)
    answer = say(ctx, upgrade(extra=[f"Content-Length: {len(hidden)}"]) + hidden)
    expect(status(answer) == 400, answer[:80])


@case("http: an upgrade with chunks", "400")
def upgrade_with_chunks(ctx):
    answer = say(ctx, upgrade(extra=["Transfer-Encoding: chunked"]) + b"0\r\n\r\n")
    expect(status(answer) == 400, answer[:80])
