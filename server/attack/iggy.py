"""A client of Iggy's protocol (version 0.10) that may misbehave: requests are built as asked for, right or wrong.

    request  [length u32: of the code and the payload][code u32][payload]
    answer   [status u32][length u32: of the payload][payload]
"""

import struct
import threading
from pathlib import Path

from harness import connect, expect

PING, LOGIN, LOGOUT = 1, 38, 39
POLL, SEND, FLUSH = 100, 101, 102
GET_OFFSET, STORE_OFFSET = 120, 121
GET_STREAMS, CREATE_STREAM, DELETE_STREAM = 201, 202, 203
CREATE_TOPIC, DELETE_TOPIC, PURGE_TOPIC = 302, 303, 305
CREATE_PARTITIONS, CREATE_GROUP = 402, 602

USER, PASSWORD = "iggy", "open sesame"

# Numbers of Iggy's errors.
OK, INVALID_COMMAND, INVALID_FORMAT, FEATURE_UNAVAILABLE = 0, 3, 4, 5
UNAUTHENTICATED, INVALID_CREDENTIALS, INVALID_SIZE = 40, 42, 80
STREAM_NOT_FOUND, INVALID_STREAM_NAME = 1009, 1013
TOPIC_NOT_FOUND, INVALID_TOPIC_NAME, TOO_MANY_PARTITIONS = 2010, 2014, 2015
PARTITION_NOT_FOUND, TOPIC_FULL = 3007, 3009
INVALID_COUNT, TOO_BIG_HEADERS, INVALID_INDEX, INVALID_MESSAGES = 4009, 4017, 4035, 4036


def options(setup):
    """The options of a server that has a password."""
    file = Path(setup.dir) / "password"
    if not file.exists():
        # Cases run at the same time: another one never sees it half written.
        whole = file.with_name(f"password-{threading.get_ident()}")
        whole.write_text(PASSWORD + "\n")
        whole.rename(file)
    return ["--iggy-password-file", str(file)]


def u32(n):
    return struct.pack("<I", n)


def name(text):
    text = text if isinstance(text, bytes) else text.encode()
    return bytes([len(text)]) + text


def number(n):
    """An identifier by number."""
    return b"\1\4" + u32(n)


def by_name(text):
    """An identifier by name."""
    return b"\2" + name(text)


def request(code, payload=b"", length=None):
    """A request. `length` replaces the true length."""
    return u32(len(payload) + 4 if length is None else length) + u32(code) + payload


def login(user=USER, password=PASSWORD):
    return request(LOGIN, name(user) + name(password) + u32(0) + u32(0))


def create_stream(text):
    return request(CREATE_STREAM, name(text))


def create_topic(stream, text, partitions=1):
    fields = u32(partitions) + b"\1" + struct.pack("<QQ", 0, 0) + b"\1"
    return request(CREATE_TOPIC, stream + fields + name(text))


def delete_topic(stream, topic):
    return request(DELETE_TOPIC, stream + topic)


def purge_topic(stream, topic):
    return request(PURGE_TOPIC, stream + topic)


def message(payload, payload_len=None, headers_len=0):
    """A message as a client sends it. `payload_len` replaces the true length."""
    payload_len = len(payload) if payload_len is None else payload_len
    return bytes(48) + u32(headers_len) + u32(payload_len) + bytes(8) + payload


def send(stream, topic, messages, partition=0, count=None, ends=None, head_len=None, behind=b""):
    """A request to send. `count`, `ends` (of the index) and `head_len` replace the true values; `behind` follows the
    last message."""
    count = len(messages) if count is None else count
    if ends is None:
        ends = [sum(map(len, messages[: n + 1])) for n in range(len(messages))]
    head = stream + topic + b"\2\4" + u32(partition) + u32(count)
    index = b"".join(bytes(4) + u32(end) + bytes(8) for end in ends)
    head_len = len(head) if head_len is None else head_len
    return request(SEND, u32(head_len) + head + index + b"".join(messages) + behind)


def poll(stream, topic, partition=0, offset=0, count=10):
    consumer = b"\1" + number(1)
    strategy = b"\1" + struct.pack("<Q", offset)
    where = stream + topic + b"\1" + u32(partition)
    return request(POLL, consumer + where + strategy + u32(count) + b"\0")


class Client:
    """A connection over TCP."""

    def __init__(self, addr, seconds_max=5, is_logged_in=True):
        self.sock = connect(addr, seconds_max)
        if is_logged_in:
            try:
                self.ask(login(), OK)
            except BaseException:
                self.sock.close()
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def receive(self):
        """The next answer: its status and its payload."""
        status, length = struct.unpack("<II", self._exactly(8))
        expect(length < 1 << 26, f"an answer of {length} bytes")
        return status, self._exactly(length)

    def ask(self, sent, *expected):
        """Sends a request. Returns the payload of the answer, whose status is one of `expected`."""
        self.sock.sendall(sent)
        status, payload = self.receive()
        expect(status in expected, f"status {status}")
        return payload

    def ping(self):
        self.ask(request(PING), OK)

    def _exactly(self, length):
        received = b""
        while len(received) < length:
            part = self.sock.recv(length - len(received))
            expect(part, f"the end of the stream after {len(received)} of {length} bytes of an answer")
            received += part
        return received
