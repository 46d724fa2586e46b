"""Events over HTTP: requests that are refused, bodies that are cut, lie, hide requests or never end."""

import os
import struct
import time

from cases.http import status
from cases.tail import LISTENERS, RIGHT, authorization, topic
from harness import MIB, SLACK, SLACK_BYTES, connect, expect, read_to_end, reset
from iggy import OK, PASSWORD, USER, Client, by_name, create_stream, create_topic, options, poll
from registry import add_case, case
from websocket import WebSocket

NDJSON = "Content-Type: application/x-ndjson"
# As --message-bytes-max has it by default.
BODY_BYTES_MAX = 16 * MIB


def server(ctx):
    return ctx.server(*options(ctx.setup), listeners=LISTENERS)


def post(path, *headers, body=b"", length=None, method="POST", authorization=RIGHT):
    """A request to append events. `length` replaces the true length; a `Transfer-Encoding` among the headers does
    without one."""
    lines = [f"{method} /events/{path} HTTP/1.1", "Host: attack", *([authorization] if authorization else []), *headers]
    if not any(header.startswith("Transfer-Encoding") for header in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


CHUNKED = "Transfer-Encoding: chunked"


def chunks(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def ask(ctx, request):
    """Sends bytes, and ends our side. Returns everything that the server answers."""
    with connect(server(ctx).addr()) as sock:
        try:
            sock.sendall(request)
            sock.shutdown(1)
        except ConnectionError:
            pass  # the server has answered and closed before everything was sent
        return read_to_end(sock)


def stored(ctx, name):
    """The payloads in partition 0 of the topic."""
    with Client(server(ctx).addr("tcp")) as iggy:
        payloads = []
        while True:
            answer = iggy.ask(poll(by_name(name), by_name(name), 0, len(payloads), 1000), OK)
            count, at = struct.unpack("<I", answer[12:16])[0], 16
            for _ in range(count):
                headers, length = struct.unpack_from("<II", answer, at + 48)
                payloads.append(answer[at + 64 : at + 64 + length])
                at += 64 + length + headers
            if not count:
                return payloads


def refused(what, expected, path="{}/{}", *headers, body=b"event", **more):
    """A request that is answered by a status, once, and appends nothing. `{}` in its path is the name of a stream and of
    its topic."""

    def run(ctx):
        name, _, _ = topic(ctx)
        answer = ask(ctx, post(path.replace("{}", name), *headers, body=body, **more))
        expect(status(answer) == expected, answer[:80] or "the end of the stream")
        expect(answer.count(b"HTTP/1.") == 1, f"several answers: {answer[:300]!r}")
        found = stored(ctx, name)
        expect(found == [], f"{len(found)} events: {found[:3]!r}")

    add_case(f"events: {what}", f"{expected}, once, and no event", run)


refused("no user", 401, authorization=None)
for what, header in [
    ("a wrong password", authorization(f"{USER}:{PASSWORD}x")),
    ("a wrong user", authorization(f"root:{PASSWORD}")),
    ("what is not base64", "Authorization: Basic !!!!"),
    ("3,000 characters", "Authorization: Basic " + "A" * 3000),
]:
    refused(f"{what} for a password", 401, authorization=header)
for method in ["GET", "PUT", "DELETE", "OPTIONS", "post"]:
    refused(f"the method {method}", 405, method=method)
for path in ["", "{}", "{}/", "/{}", "{}/{}/0", "{}/{}/", "x/{}", "{}/x", "{}/4294967296", "{}/%00", "..%2F../{}"]:
    refused(f"the path {path}", 404, path)
for query in ["partition=", "partition=-1", "partition=4294967296", "partition=0&key=a", "key=", "key=%f", "x=1"]:
    refused(f"the query {query}", 400, "{}/{}?" + query)
refused("partition 1 of one", 404, "{}/{}?partition=1")
refused("a key of 256 bytes", 400, "{}/{}?key=" + "k" * 256)
refused("a coding that is not decoded", 415, "{}/{}", "Content-Encoding: gzip")
refused("two media types", 400, "{}/{}", NDJSON, "Content-Type: text/plain")
refused("an empty body", 400, body=b"")
refused("a megabyte of empty lines", 400, "{}/{}", NDJSON, body=b"\n\r\n" * (MIB // 3))
refused("65,537 events", 400, "{}/{}", NDJSON, body=b"1\n" * 65_537)
refused("a length of 16 MiB and a byte, and no byte of it", 413, body=b"", length=BODY_BYTES_MAX + 1)
refused("an event that has no room with its header", 413, body=b"", length=BODY_BYTES_MAX - 63)
refused("a length of twenty digits", 413, body=b"", length="9" * 20)
refused("a batch that is longer than its body", 413, "{}/{}", NDJSON, body=b"\n".join([b"e" * 900] * 17_500))

# What is cut or malformed appends nothing.
for what, headers, body, expected in [
    ("chunks of more than 16 MiB", [CHUNKED], chunks(bytes(9 * MIB), bytes(9 * MIB)), 413),
    ("a chunk that is longer than it says", [NDJSON, CHUNKED], b"4\r\none\nx\r\n0\r\n\r\n", 400),
    ("a chunk size that is none", [NDJSON, CHUNKED], b"4\r\none\n\r\nx\r\n", 400),
    ("trailers without end", [NDJSON, CHUNKED], b"4\r\none\n\r\n0\r\n" + b"a: b\r\n" * 5_000, 431),
    ("a length and chunks", [CHUNKED, "Content-Length: 5"], chunks(b"event"), 400),
]:
    refused(what, expected, "{}/{}", *headers, body=body)


@case("events: bodies that are cut at many places", "no answer of 200, and no event")
def cut(ctx):
    name, _, _ = topic(ctx)
    whole = [
        post(f"{name}/{name}", NDJSON, body=b"one\ntwo\nthree\n"),
        post(f"{name}/{name}", NDJSON, CHUNKED, body=chunks(b"one\n", b"two\nthr", b"ee\n")),
        post(f"{name}/{name}", body=b"event"),
    ]
    for request in whole:
        head = request.index(b"\r\n\r\n") + 4
        for end in range(head, len(request)):
            with connect(server(ctx).addr()) as sock:
                sock.sendall(request[:end])
                if end % 2:
                    sock.shutdown(1)
                    answer = read_to_end(sock)
                    expect(status(answer) != 200, f"{answer[:60]!r} when cut at {end}")
                else:
                    reset(sock)
    expect(stored(ctx, name) == [], "events of a body that was cut")


@case("events: bodies that look like requests and line ends", "each event as it was sent, and no other answer")
def hidden(ctx):
    name, _, _ = topic(ctx)
    behind = post(f"{name}/{name}", body=b"hidden")
    events = [behind, b"\r\n\r\n", b"0\r\n\r\n", os.urandom(70_000), b"\0", b"\xff\xfe"]
    requests = [post(f"{name}/{name}", body=event) for event in events]
    long = [event for event in events if len(event) > 1]
    requests += [post(f"{name}/{name}", CHUNKED, body=chunks(event[:1], event[1:])) for event in long]
    with connect(server(ctx).addr()) as sock:
        sock.sendall(b"".join(requests))
        sock.shutdown(1)
        answers = read_to_end(sock)
    count = answers.count(b"HTTP/1.1 200 ")
    expect(count == len(requests) == answers.count(b"HTTP/1."), f"{count} answers of 200 to {len(requests)}")
    found = stored(ctx, name)
    expect(found == events + long, f"{len(found)} events")


@case("events: 1,000 requests at once, of two events each", "as many answers in order, and all events in order")
def pipelined(ctx):
    name, _, _ = topic(ctx)
    requests = [post(f"{name}/{name}", NDJSON, body=b"%d\n%d" % (2 * n, 2 * n + 1)) for n in range(1_000)]
    answers = ask(ctx, b"".join(requests))
    offsets = [int(part.split(b"}")[0]) for part in answers.split(b'"offset":')[1:]]
    expect(offsets == list(range(0, 2_000, 2)), f"{len(offsets)} answers: {answers[-80:]!r}")
    expect(stored(ctx, name) == [b"%d" % n for n in range(2_000)], "other events")


@case("events: Expect: 100-continue", "100 for who may send, and another status at once for who may not")
def expectations(ctx):
    name, _, _ = topic(ctx)
    expects = "Expect: 100-continue"
    for request, expected in [
        (post(f"{name}/{name}", expects, length=5), 100),
        (post(f"{name}/{name}", expects, length=5, authorization=None), 401),
        (post(f"{name}", expects, length=5), 404),
        (post(f"{name}/{name}", expects, length=BODY_BYTES_MAX), 413),
        (post(f"{name}/{name}", "Expect: 200-ok", length=5), 417),
    ]:
        with connect(server(ctx).addr()) as sock:
            sock.sendall(request)
            answer = sock.recv(4096)
            expect(status(answer) == expected, f"{answer[:60]!r} to {request[:80]!r}")


@case("events: 100 clients that stop in a body of 15 MiB", "a bounded peak, and others served", kind="alone")
def halves(ctx):
    budget = 64 * MIB
    with ctx.fresh(*options(ctx.setup), "--memory-max", str(budget), listeners=LISTENERS) as own:
        with Client(own.addr("tcp")) as iggy:
            iggy.ask(create_stream("some"), OK)
            iggy.ask(create_topic(by_name("some"), "some"), OK)
        clients = []
        try:
            for n in range(100):
                clients.append(connect(own.addr(), 0.2, receive_bytes=65536))
                media = [NDJSON] if n % 2 else []
                line = b"e" * 999 + b"\n"
                try:
                    clients[-1].sendall(post("some/some", *media, body=line * 8_000, length=15 * MIB))
                except (TimeoutError, ConnectionError):
                    pass  # there is no memory for more, or others need it
            begun = time.monotonic()
            with connect(own.addr(), 30) as sock:
                sock.sendall(post("some/some", "Connection: close", body=b"e" * 100_000))
                answer = read_to_end(sock, 30)
            seconds = time.monotonic() - begun
            expect(status(answer) == 200 and seconds < 5 * SLACK, f"{answer[:60]!r} after {seconds:.1f} s")
            with WebSocket(own.addr()) as socket:
                socket.echo()
            peak = own.peak_bytes()
            expect(peak < budget + SLACK_BYTES, f"{peak // MIB} MiB")
        finally:
            for sock in clients:
                sock.close()
        own.check()


@case("events: a body of a byte now and then", "408 before a minute is over", kind="waiting")
def trickle(ctx):
    with ctx.fresh(*options(ctx.setup), "--message-seconds-max", "5", listeners=LISTENERS) as own:
        with connect(own.addr(), 1) as sock:
            sock.sendall(post("some/some", length=1_000))
            begun, answer = time.monotonic(), b""
            while not answer and time.monotonic() - begun < 60:
                try:
                    sock.sendall(b"e")
                    answer = sock.recv(4096)
                except TimeoutError:
                    pass
            seconds = time.monotonic() - begun
            expect(status(answer) == 408 and seconds < 10 * SLACK, f"{answer[:60]!r} after {seconds:.1f} s")
