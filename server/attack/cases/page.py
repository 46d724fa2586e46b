"""The page of operators: pages of other sites, viewers that talk where they are to listen, and viewers that do not read."""

import json

from cases.handshake import ask, status
from harness import expect
from iggy import OK, PASSWORD, USER, Client, create_stream, create_topic, message, number, options, send
from registry import add_case, case
from websocket import NO_MASK, TEXT, WebSocket, frame, upgrade

LISTENERS = ("tcp", "http", "admin")


def server(ctx):
    return ctx.server(*options(ctx.setup), listeners=LISTENERS)


def foreign(path, origin):
    def run(ctx):
        head = ask(server(ctx).addr("admin"), upgrade(path, origin=origin, host="ops.example:81"))
        expect(status(head) == 403, head[:80] or "the end of the stream")

    add_case(f"page: {path} for a page of {origin}", "403", run)


for path in ["/live", "/tail"]:
    for origin in ["http://evil.example", "http://ops.example", "http://ops.example:81.evil.example", "null"]:
        foreign(path, origin)


def request(**changes):
    fields = {"user": USER, "password": PASSWORD, "stream": "page", "topic": "page", "partition": 0}
    return json.dumps({**fields, **changes}).encode()


def refused(what, sent, expected):
    def run(ctx):
        with WebSocket(server(ctx).addr("admin"), "/tail") as socket:
            socket.send(frame(TEXT, sent))
            code = socket.close_code()
        expect(code == expected, f"a close as {code}")

    add_case(f"page: a tail for {what}", f"a close as {expected}", run)


refused("a wrong password", request(password=PASSWORD + "x"), 4401)
refused("a wrong user", request(user="root"), 4401)
refused("an absent stream", request(stream="x" * 200), 4404)
refused("a stream with a slash", request(stream="../.."), 4404)
for what, sent in [
    ("what is not JSON", b"hello"),
    ("an array", b"[]"),
    ("2,000 brackets", b"[" * 2000),
    ("a field too many", request(more=1)),
    ("a partition that is negative", request(partition=-1)),
    ("an empty message", b""),
]:
    refused(what, sent, 4400)
refused("8,000 bytes", request(stream="x" * 8000), 1009)


@case("page: 1,000 messages to a server that only sends", "a close as 1008")
def talks(ctx):
    with WebSocket(server(ctx).addr("admin"), "/live") as socket:
        socket.send(*[frame(TEXT, b"hello", mask=NO_MASK)] * 1000)
        code = socket.close_code()
    expect(code == 1008, f"a close as {code}")


@case("page: 14 viewers that do not read, and one that does", "figures and messages for that one")
def unread(ctx):
    addr = server(ctx).addr("admin")
    with Client(server(ctx).addr("tcp")) as iggy:
        stream = number(int.from_bytes(iggy.ask(create_stream("page-unread"), OK)[:4], "little"))
        made = iggy.ask(create_topic(stream, "page-unread"), OK)
        topic = number(int.from_bytes(made[:4], "little"))
        deaf = [WebSocket(addr, "/live", receive_bytes=4096) for _ in range(14)]
        try:
            with WebSocket(addr, "/live") as live, WebSocket(addr, "/tail") as tail:
                tail.send(frame(TEXT, request(stream="page-unread", topic="page-unread")))
                expect(json.loads(tail.message()) == {"messages": []}, "something where nothing was appended")
                for n in range(3):
                    payload = f"{n} <script>".encode() * 10_000
                    iggy.ask(send(stream, topic, [message(payload)]), OK)
                    pushed = json.loads(tail.message())["messages"]
                    expect([message["offset"] for message in pushed] == [n], f"{pushed}")
                    expect(pushed[0]["bytes"] == len(payload) and len(pushed[0]["text"]) == 512, f"{pushed}")
                    expect(json.loads(live.message())["workers"] > 0, "figures")
        finally:
            for socket in deaf:
                socket.close()
