"""A WebSocket client that may misbehave: frames are built as asked for, right or wrong."""

import base64
import os
import struct
import zlib
from dataclasses import dataclass

from harness import Failed, connect, expect

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
KEY = base64.b64encode(b"sixteen bytes...").decode()
NO_MASK = b"\0\0\0\0"  # a mask that changes nothing, because masking long payloads in Python is slow
DEFLATE = "permessage-deflate"


def frame(opcode, payload=b"", fin=True, rsv=0, mask=b"\x37\xfa\x21\x3d", length=None, width=None):
    """A frame of a client. Without `mask` it is not masked. `length` replaces the true length, and `width` the
    least number of bytes for it (0, 2 or 8)."""
    length = len(payload) if length is None else length
    if width is None:
        width = 0 if length < 126 else 2 if length < 65536 else 8
    head = bytes([fin << 7 | rsv << 4 | opcode])
    is_masked = (mask is not None) << 7
    if width == 0:
        head += bytes([is_masked | length])
    elif width == 2:
        head += bytes([is_masked | 126]) + struct.pack(">H", length)
    else:
        head += bytes([is_masked | 127]) + struct.pack(">Q", length)
    if mask is None:
        return head + payload
    return head + mask + masked(payload, mask)


def masked(payload, mask):
    if mask == NO_MASK or not payload:
        return bytes(payload)
    key = (mask * (len(payload) // 4 + 1))[: len(payload)]
    number = int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")
    return number.to_bytes(len(payload), "big")


def close_frame(code=None, reason=b""):
    return frame(CLOSE, b"" if code is None else struct.pack(">H", code) + reason)


def deflated(payload, window_bits=15, level=9):
    """A compressed message (RFC 7692 section 7.2.1): without the tail of its flush."""
    # zlib uses 9 bits where 8 are asked for, and a window of 8 bits may be too small for the result.
    stream = zlib.compressobj(level, zlib.DEFLATED, -max(window_bits, 9))
    whole = stream.compress(payload) + stream.flush(zlib.Z_SYNC_FLUSH)
    return whole[:-4]


def upgrade(path="/echo", extensions=None, origin=None, extra=(), version="13", key=KEY, host="attack"):
    """The head of a request for an upgrade. None leaves a header out."""
    lines = [f"GET {path} HTTP/1.1"]
    for name, value in [
        ("Host", host),
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", version),
        ("Sec-WebSocket-Key", key),
        ("Sec-WebSocket-Extensions", extensions),
        ("Origin", origin),
    ]:
        if value is not None:
            lines.append(f"{name}: {value}")
    return ("\r\n".join([*lines, *extra]) + "\r\n\r\n").encode("latin-1")


@dataclass
class Frame:
    fin: bool
    rsv: int
    opcode: int
    payload: bytes

    @property
    def close_code(self):
        return struct.unpack(">H", self.payload[:2])[0] if len(self.payload) >= 2 else None


class Ended(Failed):
    """The connection has ended, and a frame was expected."""


class WebSocket:
    """A connection that was upgraded."""

    def __init__(
        self,
        addr,
        path="/echo",
        extensions=None,
        tls=None,
        seconds_max=5,
        source=None,
        receive_bytes=None,
        extra=(),
    ):
        self.sock = connect(addr, seconds_max, source, receive_bytes)
        try:
            if tls:
                self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")
            self.sock.sendall(upgrade(path, extensions, extra=extra))
            self.buffered = bytearray()
            self.head = self._read_head()
            expect(self.head.startswith("HTTP/1.1 101 "), f"no upgrade: {self.head.splitlines()[:1]}")
        except BaseException:
            self.sock.close()
            raise
        self.agreed = next(
            (
                line.split(":", 1)[1].strip()
                for line in self.head.splitlines()
                if line.lower().startswith("sec-websocket-extensions:")
            ),
            None,
        )
        self.inflater = zlib.decompressobj(-15)

    def _read_head(self):
        while b"\r\n\r\n" not in self.buffered:
            self._read_more()
        head, _, rest = bytes(self.buffered).partition(b"\r\n\r\n")
        self.buffered = bytearray(rest)
        return head.decode("latin-1")

    def _read_more(self):
        try:
            part = self.sock.recv(1 << 18)
        except ConnectionError as error:
            raise Ended(f"{error!r} where a frame was expected") from error
        except TimeoutError as error:
            raise Failed("nothing comes where a frame was expected") from error
        if not part:
            raise Ended("the end of the stream where a frame was expected")
        self.buffered += part

    def send(self, *frames):
        """Sends bytes. If the server has closed, the next read shows it."""
        try:
            self.sock.sendall(b"".join(frames))
        except ConnectionError:
            pass

    def receive(self):
        """The next frame."""
        while True:
            parsed = parse(self.buffered)
            if parsed:
                result, used = parsed
                del self.buffered[:used]
                return result
            self._read_more()

    def message(self):
        """The next message, assembled and inflated. Skips control frames."""
        first = self.receive()
        while first.opcode in (PING, PONG):
            first = self.receive()
        expect(first.opcode != CLOSE, f"a close of {first.close_code} where a message was expected")
        parts, last = [first.payload], first
        while not last.fin:
            last = self.receive()
            if last.opcode == CONTINUATION:
                parts.append(last.payload)
        payload = b"".join(parts)
        if first.rsv & 4:
            payload = self.inflater.decompress(payload + b"\0\0\xff\xff")
            if "server_no_context_takeover" in (self.agreed or ""):
                self.inflater = zlib.decompressobj(-15)
        return payload

    def echo(self, payload=b"well"):
        """Sends a message. Fails unless it comes back."""
        self.send(frame(BINARY, payload, mask=NO_MASK))
        back = self.message()
        expect(back == payload, f"{len(back)} bytes that are not the echo of {len(payload)}")

    def close_code(self):
        """Skips messages and pongs up to the close frame, answers that, and waits for the end of the stream.
        Returns the code of the close."""
        while (closing := self.receive()).opcode != CLOSE:
            pass
        self.send(close_frame(closing.close_code))
        try:
            while True:
                self.receive()
        except Ended:
            return closing.close_code

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def parse(buffered):
    """The frame of a server at the front, and its length. None if more bytes are needed."""
    if len(buffered) < 2:
        return None
    expect(not buffered[1] & 0x80, "a masked frame from the server")
    length, used = buffered[1] & 0x7F, 2
    if length == 126:
        if len(buffered) < 4:
            return None
        length, used = struct.unpack_from(">H", buffered, 2)[0], 4
    elif length == 127:
        if len(buffered) < 10:
            return None
        length, used = struct.unpack_from(">Q", buffered, 2)[0], 10
    if len(buffered) < used + length:
        return None
    first = buffered[0]
    payload = bytes(buffered[used : used + length])
    return Frame(first >> 7 == 1, first >> 4 & 7, first & 15, payload), used + length


def random_bytes(count):
    return os.urandom(count)
