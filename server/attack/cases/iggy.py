"""Iggy's protocol: requests that are cut, lie, come too early or never end."""

import os
import struct
import time

from harness import MIB, SLACK_BYTES, expect, read_to_end
from iggy import (
    CREATE_GROUP,
    CREATE_PARTITIONS,
    CREATE_STREAM,
    FEATURE_UNAVAILABLE,
    GET_OFFSET,
    GET_STREAMS,
    INVALID_COMMAND,
    INVALID_COUNT,
    INVALID_CREDENTIALS,
    INVALID_FORMAT,
    INVALID_INDEX,
    INVALID_MESSAGES,
    INVALID_SIZE,
    INVALID_STREAM_NAME,
    INVALID_TOPIC_NAME,
    LOGIN,
    LOGOUT,
    OK,
    PARTITION_NOT_FOUND,
    PASSWORD,
    PING,
    POLL,
    SEND,
    STORE_OFFSET,
    STREAM_NOT_FOUND,
    TOO_BIG_HEADERS,
    TOO_MANY_PARTITIONS,
    TOPIC_NOT_FOUND,
    UNAUTHENTICATED,
    USER,
    Client,
    by_name,
    create_stream,
    create_topic,
    login,
    message,
    name,
    number,
    options,
    poll,
    request,
    send,
    u32,
)
from registry import add_case, case
from websocket import BINARY, NO_MASK, TEXT, WebSocket, frame

LISTENERS = ("tcp", "http")
INVALID = (INVALID_COMMAND, INVALID_FORMAT)


def server(ctx):
    return ctx.server(*options(ctx.setup), listeners=LISTENERS)


def client(ctx, **how):
    return Client(server(ctx).addr("tcp"), **how)


def topic(ctx):
    """The numbers of a stream and a topic with one partition, for one case alone."""
    unique = os.urandom(8).hex()
    with client(ctx) as iggy:
        stream = number(struct.unpack("<I", iggy.ask(create_stream(unique), OK)[:4])[0])
        made = iggy.ask(create_topic(stream, unique), OK)
    return stream, number(struct.unpack("<I", made[:4])[0])


def refused(what, sent, *expected, is_logged_in=True):
    """A request that is refused; the connection goes on."""

    def run(ctx):
        with client(ctx, is_logged_in=is_logged_in) as iggy:
            iggy.ask(sent, *expected)
            iggy.ping()

    statuses = " or ".join(map(str, expected))
    add_case(f"iggy: {what}", f"status {statuses}, and a connection that goes on", run)


def ended(what, sent, *expected, is_logged_in=True):
    """A request behind which nothing can be decoded: it is answered, and the connection ends."""

    def run(ctx):
        with client(ctx, is_logged_in=is_logged_in) as iggy:
            iggy.ask(sent, *expected)
            rest = read_to_end(iggy.sock)
            expect(rest == b"", f"{len(rest)} bytes more")

    statuses = " or ".join(map(str, expected))
    add_case(f"iggy: {what}", f"status {statuses}, and the end", run)


for length in range(4):
    ended(f"a length of {length}", request(PING, length=length), INVALID_COMMAND, is_logged_in=False)
for length in [9_000, 1 << 30, (1 << 32) - 1]:
    ended(f"a length of {length} before the login", request(SEND, length=length), UNAUTHENTICATED, is_logged_in=False)
ended("a length of 4 GiB", request(SEND, length=(1 << 32) - 1), INVALID_SIZE)
ended("a long request that is none to send", request(GET_STREAMS, length=1 << 20), INVALID_SIZE)
ended("bytes of HTTP", b"GET / HTTP/1.1\r\nHost: attack\r\n\r\n", UNAUTHENTICATED, is_logged_in=False)

for code in [GET_STREAMS, CREATE_STREAM, POLL, SEND, LOGOUT, STORE_OFFSET, 0, 999, (1 << 32) - 1]:
    refused(f"command {code} before the login", request(code, b"\1" * 40), UNAUTHENTICATED, is_logged_in=False)
for code in [0, 999, (1 << 32) - 1]:
    refused(f"command {code}, which is none", request(code), INVALID_COMMAND, FEATURE_UNAVAILABLE)
for code, what in [(33, "create a user"), (42, "create a token"), (503, "delete segments")]:
    refused(f"a command that is not served: {what}", request(code, b"\1" * 40), *INVALID, FEATURE_UNAVAILABLE)

for what, user, password in [
    ("password", USER, PASSWORD + "x"),
    ("password that is its beginning", USER, PASSWORD[:-1]),
    ("user", "root", PASSWORD),
]:
    refused(f"a wrong {what}", login(user, password), INVALID_CREDENTIALS, is_logged_in=False)
refused("a login without a user", login(""), *INVALID, is_logged_in=False)
refused("a login that is cut", request(LOGIN, name(USER) + b"\x0bop"), *INVALID, is_logged_in=False)
refused("a user that is not UTF-8", login(b"\xff\xfe"), *INVALID, is_logged_in=False)
refused(
    "a login whose version is said to have 4 GiB",
    request(LOGIN, name(USER) + name(PASSWORD) + u32((1 << 32) - 1) + u32(0)),
    *INVALID,
    is_logged_in=False,
)

for what, text in [("a slash", "a/b"), ("a backslash", "a\\b"), ("NUL", "a\0b"), ("a line break", "a\nb")]:
    refused(f"a stream with {what} in its name", create_stream(text), INVALID_STREAM_NAME)
refused("a stream without a name", create_stream(""), *INVALID, INVALID_STREAM_NAME)
refused("a name that is not UTF-8", create_stream(b"\xc3\x28"), *INVALID, INVALID_STREAM_NAME)
refused("a name that is cut", request(CREATE_STREAM, b"\xffabc"), *INVALID)
refused("a topic of a stream that is not there", create_topic(number(4_000_000), "some"), STREAM_NOT_FOUND)
refused("a topic of a stream that has no such name", create_topic(by_name("nowhere"), "some"), STREAM_NOT_FOUND)
refused("an identifier of no kind", create_topic(b"\7\4" + u32(1), "some"), *INVALID)
refused("an identifier of a length that it cannot have", create_topic(b"\1\2\0\0", "some"), *INVALID)
refused(
    "messages to a stream that is not there", send(number(4_000_000), number(0), [message(b"some")]), STREAM_NOT_FOUND
)
refused("a poll of a stream that is not there", poll(number(4_000_000), number(0)), STREAM_NOT_FOUND)


def refused_by_topic(what, sent, *expected):
    """A request about a topic, which `sent` makes. It is refused; the topic stays as it was."""

    def run(ctx):
        stream, its_topic = topic(ctx)
        with client(ctx) as iggy:
            iggy.ask(send(stream, its_topic, [message(b"before")]), OK)
            iggy.ask(sent(stream, its_topic), *expected)
            iggy.ask(send(stream, its_topic, [message(b"after")]), OK)
            polled = iggy.ask(poll(stream, its_topic), OK)
        count = struct.unpack("<I", polled[12:16])[0]
        expect(count == 2 and b"before" in polled and b"after" in polled, f"{count} messages")

    statuses = " or ".join(map(str, expected))
    add_case(f"iggy: {what}", f"status {statuses}, and a topic with what was accepted", run)


TWO = [message(b"one"), message(b"two")]
refused_by_topic("a batch of no messages", lambda s, t: send(s, t, []), INVALID_COUNT)
refused_by_topic(
    "a batch that says it has 4 G messages",
    lambda s, t: send(s, t, TWO, count=(1 << 32) - 1),
    INVALID_COUNT,
)
for count in [1, 3, 60_000]:
    refused_by_topic(
        f"a batch of two that says {count}",
        lambda s, t, count=count: send(s, t, TWO, count=count),
        INVALID_COUNT,
        INVALID_INDEX,
        INVALID_MESSAGES,
    )
for ends in [[0, 0], [1, 2], [67, 67], [134, 67], [67, (1 << 32) - 1]]:
    refused_by_topic(
        f"an index that says {ends}",
        lambda s, t, ends=ends: send(s, t, TWO, ends=ends),
        INVALID_INDEX,
    )
for length in [0, 4, 1 << 31, (1 << 32) - 1]:
    refused_by_topic(
        f"a message of 3 bytes that says {length}",
        lambda s, t, length=length: send(s, t, [message(b"abc", payload_len=length)]),
        INVALID_INDEX,
        INVALID_MESSAGES,
    )
refused_by_topic(
    "user headers that are said to have 4 GiB",
    lambda s, t: send(s, t, [message(b"abc", headers_len=(1 << 32) - 1)]),
    INVALID_MESSAGES,
    TOO_BIG_HEADERS,
)
refused_by_topic(
    "user headers of 200,000 bytes",
    lambda s, t: send(s, t, [message(bytes(200_000), payload_len=0, headers_len=200_000)]),
    TOO_BIG_HEADERS,
)
refused_by_topic(
    "bytes behind the last message", lambda s, t: send(s, t, TWO, behind=b"more"), INVALID_MESSAGES
)
refused_by_topic("half a message", lambda s, t: send(s, t, [message(b"abc")[:40]]), INVALID_MESSAGES)
for length in [0, 3, 1000, (1 << 32) - 1]:
    refused_by_topic(
        f"a batch whose head says {length}",
        lambda s, t, length=length: send(s, t, TWO, head_len=length),
        *INVALID,
    )
refused_by_topic(
    "messages to a partition that is not there",
    lambda s, t: send(s, t, TWO, partition=99),
    PARTITION_NOT_FOUND,
)
refused_by_topic(
    "messages to a topic that is not there", lambda s, t: send(s, number(77), TWO), TOPIC_NOT_FOUND
)
refused_by_topic(
    "a poll of a partition that is not there", lambda s, t: poll(s, t, partition=99), PARTITION_NOT_FOUND
)
refused_by_topic(
    "a topic of 4 G partitions", lambda s, t: create_topic(s, "many", (1 << 32) - 1), TOO_MANY_PARTITIONS
)
refused_by_topic(
    "4 G more partitions",
    lambda s, t: request(CREATE_PARTITIONS, s + t + u32((1 << 32) - 1)),
    TOO_MANY_PARTITIONS,
)
refused_by_topic("a topic with NUL in its name", lambda s, t: create_topic(s, "a\0b"), INVALID_TOPIC_NAME)
refused_by_topic("a consumer group that is cut", lambda s, t: request(CREATE_GROUP, s + t + b"\x09ab"), *INVALID)
refused_by_topic("an offset of no kind of consumer", lambda s, t: request(GET_OFFSET, b"\7" + s + s + t), *INVALID)


@case("iggy: a request in single bytes", "its answer")
def single_bytes(ctx):
    with client(ctx, is_logged_in=False) as iggy:
        for byte in login():
            iggy.sock.sendall(bytes([byte]))
        status, _ = iggy.receive()
        expect(status == OK, f"status {status}")


@case("iggy: 10,000 pings in one piece", "10,000 answers")
def many_pings(ctx):
    with client(ctx) as iggy:
        iggy.sock.sendall(request(PING) * 10_000)
        for _ in range(10_000):
            status, _ = iggy.receive()
            expect(status == OK, f"status {status}")


@case("iggy: a poll of 4 G messages", "what there is")
def poll_of_very_many(ctx):
    stream, its_topic = topic(ctx)
    with client(ctx) as iggy:
        iggy.ask(send(stream, its_topic, TWO), OK)
        polled = iggy.ask(poll(stream, its_topic, count=(1 << 32) - 1), OK)
        expect(struct.unpack("<I", polled[12:16])[0] == 2, f"{polled[:16]!r}")
        polled = iggy.ask(poll(stream, its_topic, offset=(1 << 64) - 1), OK)
        expect(struct.unpack("<I", polled[12:16])[0] == 0, f"{polled[:16]!r}")


@case("iggy: a client that ends within a request", "an end, and no harm to others")
def ends_within_a_request(ctx):
    for length in [3, 8, 20]:
        with client(ctx) as iggy:
            iggy.sock.sendall(send(number(1), number(1), TWO)[:length])
    with client(ctx) as iggy:
        iggy.ping()


@case("iggy: half a request and silence", "an end within 5 s", kind="waiting")
def half_a_request(ctx):
    with ctx.fresh(*options(ctx.setup), "--message-seconds-max", "1", listeners=LISTENERS) as own:
        for is_logged_in in [False, True]:
            with Client(own.addr("tcp"), is_logged_in=is_logged_in) as iggy:
                begun = time.monotonic()
                iggy.sock.sendall(request(PING, b"\0" * 8)[:10])
                read_to_end(iggy.sock, 10)
                took = time.monotonic() - begun
                expect(took < 5, f"the end after {took:.1f} s")
        own.check()


@case("iggy: 200 clients that announce 16 MiB each", "a peak within 64 MiB, and service for others", kind="alone")
def announced_and_not_sent(ctx):
    limits = ["--message-bytes-max", str(16 * MIB)]
    with ctx.fresh(*options(ctx.setup), *limits, listeners=LISTENERS) as own:
        clients = []
        try:
            for _ in range(200):
                clients.append(Client(own.addr("tcp")))
                clients[-1].sock.sendall(request(SEND, bytes(1000), length=16 * MIB - 4))
            with Client(own.addr("tcp")) as iggy:
                iggy.ping()
            peak = own.peak_bytes()
            expect(peak < SLACK_BYTES, f"{peak // MIB} MiB")
        finally:
            for iggy in clients:
                iggy.sock.close()
        own.check()


def polls_without_reading(ctx, messages, offset):
    """Clients that poll the messages of a batch from an offset on, and read nothing."""
    budget = 64 * MIB
    with ctx.fresh(*options(ctx.setup), "--memory-max", str(budget), listeners=LISTENERS) as own:
        with Client(own.addr("tcp")) as iggy:
            iggy.ask(create_stream("some"), OK)
            iggy.ask(create_topic(by_name("some"), "some"), OK)
            where = by_name("some"), by_name("some")
            iggy.ask(send(*where, messages), OK)
        clients = []
        try:
            for _ in range(50):
                clients.append(Client(own.addr("tcp")))
                clients[-1].sock.settimeout(0.2)
                try:
                    clients[-1].sock.sendall(poll(*where, offset=offset) * 1000)
                except TimeoutError:
                    pass  # the server reads no more: as it should
            time.sleep(1)
            with Client(own.addr("tcp")) as iggy:
                iggy.ping()
            peak = own.peak_bytes()
            expect(peak < budget + SLACK_BYTES, f"{peak // MIB} MiB")
        finally:
            for iggy in clients:
                iggy.sock.close()
        own.check()


@case("iggy: 50 clients that poll 1 MiB without end and read nothing", "a bounded peak", kind="alone")
def polls_of_a_batch(ctx):
    polls_without_reading(ctx, [message(bytes(MIB))], offset=0)


@case("iggy: 50 clients that poll the shorter half of a long batch and read nothing", "a bounded peak", kind="alone")
def polls_of_half_a_batch(ctx):
    polls_without_reading(ctx, [message(bytes(6 * MIB)), message(bytes(5 * MIB))], offset=1)


def over_websocket(ctx):
    return WebSocket(server(ctx).addr(), "/")


def closed(what, messages, code):
    def run(ctx):
        with over_websocket(ctx) as socket:
            socket.send(*messages)
            seen = socket.close_code()
            expect(seen == code, f"a close of {seen}")

    add_case(f"iggy: {what}", f"a close of {code}", run)


closed("a text message over WebSocket", [frame(TEXT, b"ping")], 1003)
closed("half a request over WebSocket", [frame(BINARY, login()[:9])], 1007)
closed("an impossible length over WebSocket", [frame(BINARY, request(PING, length=2))], 1007)
closed(
    "a length of 4 GiB over WebSocket",
    [frame(BINARY, login()), frame(BINARY, request(SEND, length=(1 << 32) - 1))],
    1009,
)
closed(
    "a long request before the login over WebSocket",
    [frame(BINARY, request(SEND, bytes(20_000)), mask=NO_MASK)],
    1008,
)


@case("iggy: several requests in one WebSocket message", "an answer for each")
def several_in_a_message(ctx):
    with over_websocket(ctx) as socket:
        socket.send(frame(BINARY, login() + request(PING) + request(999) + request(PING)))
        statuses = [struct.unpack("<I", socket.message()[:4])[0] for _ in range(4)]
        expect(statuses[:2] + statuses[3:] == [OK] * 3 and statuses[2] != OK, f"statuses {statuses}")
