"""Requests for an upgrade that violate RFC 6455 section 4.2.1, and offers of compression."""

from harness import connect, expect, read_to_end
from registry import add_case, case
from websocket import BINARY, DEFLATE, NO_MASK, WebSocket, deflated, frame, random_bytes, upgrade


def ask(addr, request):
    """Sends a request. Returns the head of the answer."""
    with connect(addr) as sock:
        sock.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = sock.recv(65536)
            if not part:
                break
            answer += part
    return answer.partition(b"\r\n\r\n")[0].decode("latin-1")


def status(head):
    words = head.split(" ", 2)
    return int(words[1]) if len(words) > 1 else None


def answered(name, request, expected, header=None):
    def run(ctx):
        head = ask(ctx.server().addr(), request)
        expect(status(head) == expected, head[:80] or "the end of the stream")
        expect(header is None or header.lower() in head.lower(), f"no {header} in {head!r}")

    add_case(f"handshake: {name}", f"{expected}{f' with {header}' if header else ''}", run)


answered("as it should be", upgrade(), 101, "Sec-WebSocket-Accept: ")
answered("no key", upgrade(key=None), 400)
answered("an empty key", upgrade(key=""), 400)
answered("two keys", upgrade(extra=["Sec-WebSocket-Key: c2l4dGVlbiBieXRlcy4uLg=="]), 400)
answered("a key of 15 bytes", upgrade(key="c2l4dGVlbiBieXRlcy4u"), 400)
answered("a key of 17 bytes", upgrade(key="c2l4dGVlbiBieXRlcy4uLi4="), 400)
answered("a key that is not base64", upgrade(key="!" * 24), 400)
answered("a key of 24 characters with its padding within", upgrade(key="c2l4dGVl==iBieXRlcy4uLg="), 400)
answered("a key of 4,000 characters", upgrade(key="A" * 4000), 400)
answered("no version", upgrade(version=None), 426, "Sec-WebSocket-Version: 13")
for version in ["12", "8", "14", "013", "13, 8", "-1", "99999999999"]:
    answered(f"version {version}", upgrade(version=version), 426, "Sec-WebSocket-Version: 13")
answered("the version twice", upgrade(extra=["Sec-WebSocket-Version: 13"]), 426)
answered("no Host", upgrade(host=None), 400)
answered("two Hosts", upgrade(extra=["Host: other"]), 400)
answered("HTTP/1.0", upgrade().replace(b"HTTP/1.1", b"HTTP/1.0"), 505)
answered("POST", upgrade().replace(b"GET", b"POST"), 405, "Allow: ")
answered("an upgrade to h2c", upgrade().replace(b"websocket", b"h2c"), 426, "Upgrade: websocket")
answered("no Upgrade", upgrade().replace(b"Upgrade: websocket\r\n", b""), 426)
answered("no Connection", upgrade().replace(b"Connection: Upgrade\r\n", b""), 426)
answered(
    "Connection: keep-alive, Upgrade",
    upgrade().replace(b"Connection: Up", b"Connection: keep-alive, Up"),
    101,
)
answered("websocket in capitals", upgrade().replace(b"websocket", b"WEBSOCKET"), 101)
answered("an upgrade to a path that is not there", upgrade("/nowhere"), 404)
answered("an upgrade of /health", upgrade("/health"), 200)

PAGE = "https://good.example"


def origin(name, value, *expected, extra=()):
    def run(ctx):
        server = ctx.server("--origins", PAGE)
        head = ask(server.addr(), upgrade(origin=value, extra=extra))
        expect(status(head) in expected, head[:80])

    add_case(
        f"handshake: {name}, where only pages of {PAGE} may connect", " or ".join(map(str, expected)), run
    )


origin("a page of that origin", PAGE, 101)
origin("a client that is not a browser", None, 101)
origin("a foreign page", "https://evil.example", 403)
origin("a page whose name begins alike", f"{PAGE}.evil.example", 403)
origin("a page of the other scheme", "http://good.example", 403)
origin("a page of another port", f"{PAGE}:8443", 403)
origin("a page that hides where it is from", "null", 403)
origin("a page that names both origins", "https://evil.example", 400, 403, extra=[f"Origin: {PAGE}"])
origin("a page that names both origins, its own first", PAGE, 400, 403, extra=["Origin: https://evil.example"])


def not_agreed(name, offer):
    """A bad offer: the connection works without compression."""

    def run(ctx):
        with WebSocket(ctx.server("--deflate", "takeover").addr(), extensions=offer) as socket:
            expect(socket.agreed is None, f"agreed: {socket.agreed}")
            socket.echo(b"as it is")

    add_case(f"handshake: the offer {name}", "an upgrade without compression, that works", run)


for offer in [
    "permessage-deflate; client_max_window_bits=7",
    "permessage-deflate; client_max_window_bits=16",
    "permessage-deflate; client_max_window_bits=08",
    "permessage-deflate; server_max_window_bits",
    "permessage-deflate; server_max_window_bits=0",
    "permessage-deflate; server_max_window_bits=-9",
    "permessage-deflate; server_max_window_bits=99999999999999999999",
    "permessage-deflate; server_max_window_bits=10; server_max_window_bits=10",
    "permessage-deflate; server_no_context_takeover=1",
    "permessage-deflate; unknown",
    "permessage-deflate; =",
    'permessage-deflate; client_max_window_bits="',
    "permessage-bzip2",
    "x-webkit-deflate-frame",
    ";;;,,,",
    "permessage-deflate" + "; a" * 2000,
]:
    not_agreed(offer if len(offer) < 90 else f"{offer[:22]} and 2,000 parameters", offer)


def window(side, bits):
    def run(ctx):
        offer = f"{DEFLATE}; {side}_max_window_bits={bits}"
        with WebSocket(ctx.server("--deflate", "takeover").addr(), extensions=offer) as socket:
            for payload in [b"again and again " * 4096, random_bytes(70_000), b"again and again " * 4096]:
                if socket.agreed and side == "client" and bits > 8:
                    # Messages that are compressed each by itself are valid with any takeover.
                    socket.send(frame(BINARY, deflated(payload, bits), rsv=4, mask=NO_MASK))
                else:
                    socket.send(frame(BINARY, payload, mask=NO_MASK))
                back = socket.message()
                expect(back == payload, f"{len(back)} other bytes for {len(payload)}, with {socket.agreed}")

    add_case(f"handshake: {side}_max_window_bits={bits}", "echoes, compressed as agreed or not at all", run)


for bits in range(8, 16):
    window("server", bits)
    window("client", bits)


@case(
    "handshake: a window that the server cannot send with is not agreed to",
    "with server_max_window_bits=8, no agreement, or answers that are compressed",
)
def unsendable_window(ctx):
    offer = f"{DEFLATE}; server_max_window_bits=8"
    with WebSocket(ctx.server("--deflate", "takeover").addr(), extensions=offer) as socket:
        if socket.agreed is None:
            return
        socket.send(frame(BINARY, deflated(bytes(100_000), 9), rsv=4))
        back = socket.receive()
        expect(
            back.rsv == 4 and len(back.payload) < 10_000,
            f"{socket.agreed}, and an answer of {len(back.payload)} bytes for 100,000 zeros",
        )


@case("handshake: 60 offers in as many headers", "101, and the first that is good is agreed to")
def many_offers(ctx):
    extra = [f"Sec-WebSocket-Extensions: {DEFLATE}; x{n}" for n in range(50)]
    extra.append(f"Sec-WebSocket-Extensions: {DEFLATE}")
    head = ask(ctx.server("--deflate", "takeover").addr(), upgrade(extra=extra))
    expect(status(head) == 101 and DEFLATE in head, head[:300])


@case("handshake: a refusal to a client that goes on sending", "400, all of it, and the end")
def refused_and_sending(ctx):
    with connect(ctx.server().addr()) as sock:
        sock.sendall(upgrade(key=None) + frame(BINARY, bytes(60_000), mask=NO_MASK))
        answer = read_to_end(sock)
    expect(answer.startswith(b"HTTP/1.1 400 ") and b"\r\n\r\n" in answer, answer[:80])
