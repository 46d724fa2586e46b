"""A process that floods a server from many connections, as fast as one core can. A victim is measured meanwhile.

    python3 neighbours.py KIND HOST PORT CONNECTIONS [CERT]

Prints `ready` once all are connected, and ends with its standard input. Its connections keep the protocol: each
reads what it is sent, and answers a close.
"""

import select
import socket
import ssl
import struct
import sys
from dataclasses import dataclass, field

from websocket import (
    BINARY,
    CONTINUATION,
    DEFLATE,
    NO_MASK,
    PING,
    TEXT,
    close_frame,
    deflated,
    frame,
    upgrade,
)

MIB = 1 << 20
# About how much is sent at once, in whole frames.
CHUNK_BYTES = 1 << 16
# All connections read into this buffer. What they receive is not used.
READ_BUFFER = memoryview(bytearray(1 << 20))
GOING_AWAY = b"\x88\x02\x03\xe9"


@dataclass
class Kind:
    """What a neighbour sends: `opening` once, and `repeated` again and again."""

    title: str
    listener: str
    opening: bytes
    repeated: bytes
    # The end of the answer to the opening. The neighbour waits for it.
    answer_ends: bytes = b"\r\n\r\n"
    is_websocket: bool = True
    options: tuple = ()
    payload: bytes = field(init=False, default=b"")

    def __post_init__(self):
        if self.repeated:
            self.payload = self.repeated * max(1, CHUNK_BYTES // len(self.repeated))


DEFLATED = upgrade("/sink", DEFLATE)
INFLATING = frame(BINARY, deflated(bytes(64 * 1024)), rsv=4, mask=NO_MASK)  # of 85 bytes or so
REQUEST = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
FOR_EVER = struct.pack("<III", 0xFFFFFFFF, 0, 0xFFFFFFFF)
WITH_DEFLATE = ("--deflate", "takeover")

KINDS = {
    "pings": Kind("pings", "http", upgrade(), frame(PING)),
    "long pings": Kind("pings of 125 bytes", "http", upgrade(), frame(PING, bytes(125), mask=NO_MASK)),
    "empty messages": Kind("empty messages", "http", upgrade(), frame(BINARY)),
    "empty texts to sink": Kind("empty texts to /sink", "http", upgrade("/sink"), frame(TEXT)),
    "empty fragments": Kind(
        "empty fragments", "http", upgrade() + frame(BINARY, b"", fin=False), frame(CONTINUATION, fin=False)
    ),
    "endless source": Kind(
        "readers of an endless /source, batches of 1,000,000",
        "http",
        upgrade("/source?bytes=0&batch=1000000"),
        b"",
    ),
    "fetches": Kind(
        "requests of /source, 64 empty messages each",
        "http",
        upgrade("/source"),
        frame(BINARY, struct.pack("<III", 64, 0, 64), mask=NO_MASK),
    ),
    "long messages": Kind("echoes of 1 MiB", "http", upgrade(), frame(BINARY, bytes(MIB), mask=NO_MASK)),
    "inflating": Kind(
        "messages to /sink that inflate to 64 KiB", "http", DEFLATED, INFLATING, options=WITH_DEFLATE
    ),
    "inflating echo": Kind(
        "messages to /echo that inflate to 64 KiB",
        "http",
        upgrade("/echo", DEFLATE),
        INFLATING,
        options=WITH_DEFLATE,
    ),
    "requests": Kind(
        "requests of /health that are not waited for", "http", REQUEST, REQUEST, b"\r\n\r\nok\n", False
    ),
    "tcp sink": Kind("empty messages to sink over TCP", "sink", b"", bytes(4), b"", False),
    "tcp source": Kind("readers of an endless source over TCP", "source", FOR_EVER, b"", b"", False),
    "tls pings": Kind("pings over TLS", "https", upgrade(), frame(PING)),
    "tls source": Kind(
        "readers of an endless /source over TLS", "https", upgrade("/source?bytes=0&batch=1000000"), b""
    ),
}


class Neighbour:
    def __init__(self, kind, addr, tls):
        self.kind, self.at, self.is_closing = kind, 0, False
        self.sock = socket.create_connection(addr, 10)
        if tls and kind.listener == "https":
            self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")
        self.sock.sendall(kind.opening)
        answer = b""
        while kind.answer_ends and kind.answer_ends not in answer:
            part = self.sock.recv(4096)
            if not part:
                raise SystemExit(f"no answer to {kind.title}: {answer!r}")
            answer += part
        self.sock.setblocking(False)

    def send(self):
        """Sends what the socket takes. False if there is nothing to send."""
        payload = self.kind.payload
        if self.is_closing or not payload:
            return False
        try:
            self.at += self.sock.send(payload[self.at :] if self.at else payload)
            self.at %= len(payload)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        return True

    def read(self):
        """Reads what has arrived. False at the end of the stream."""
        try:
            count = self.sock.recv_into(READ_BUFFER)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        # A close is the last frame of the server.
        if self.kind.is_websocket and GOING_AWAY in bytes(READ_BUFFER[max(count - 64, 0) : count]):
            self.is_closing = True
            # Completes the frame that is being sent.
            rest = -self.at % max(len(self.kind.repeated), 1)
            try:
                self.sock.send(self.kind.payload[self.at : self.at + rest] + close_frame(1001))
            except OSError:
                return False
        return count > 0


def main():
    kind, host, port, count, *cert = sys.argv[1:]
    kind = KINDS[kind]
    tls = ssl.create_default_context(cafile=cert[0]) if cert else None
    neighbours = [Neighbour(kind, (host, int(port)), tls) for _ in range(int(count))]
    print("ready", flush=True)
    poll, by_descriptor = select.epoll(), {}
    for neighbour in neighbours:
        by_descriptor[neighbour.sock.fileno()] = neighbour
        poll.register(neighbour.sock, select.EPOLLIN | (select.EPOLLOUT if kind.payload else 0))
    poll.register(sys.stdin, select.EPOLLIN)
    while by_descriptor:
        for descriptor, events in poll.poll(1):
            if descriptor == sys.stdin.fileno():
                return
            neighbour = by_descriptor[descriptor]
            try:
                is_open = neighbour.read() if events & ~select.EPOLLOUT else True
                if is_open and events & select.EPOLLOUT and not neighbour.send():
                    poll.modify(neighbour.sock, select.EPOLLIN)
            except OSError:
                is_open = False
            if not is_open:
                poll.unregister(descriptor)
                neighbour.sock.close()
                del by_descriptor[descriptor]
    sys.stdin.read()


if __name__ == "__main__":
    main()
