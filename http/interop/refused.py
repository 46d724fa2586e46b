#!/usr/bin/env python3
"""`refused.py HOST:PORT`: sends each request of refused.md, and prints where the status differs from the table.

A server of this project must not differ. For another one, the output is the list of differences to explain: `none`
means that it answers nothing, 2xx and 3xx that it accepts the request.
"""

import pathlib
import re
import socket
import sys

TABLE = pathlib.Path(__file__).parent.parent / "refused.md"
ESCAPES = {"r": b"\r", "n": b"\n", "t": b"\t", "0": b"\0"}
TIME_MAX = 2.0  # seconds in which a server answers what it refuses


def unescape(text):
    """Replaces `\\r`, `\\n`, `\\t`, `\\0`, `\\xNN`, and `{TEXT*N}` by TEXT, N times."""
    parts = []
    for match in re.finditer(r"\{(.*)\*(\d+)\}|\\x(..)|\\(.)|(.)", text):
        repeated, times, code, escape, plain = match.groups()
        if times:
            parts.append(unescape(repeated) * int(times))
        elif code:
            parts.append(bytes([int(code, 16)]))
        else:
            parts.append(ESCAPES[escape] if escape else plain.encode())
    return b"".join(parts)


def rows():
    for line in TABLE.read_text().splitlines():
        if line.startswith("| `"):
            request, status, _, section = [cell.strip() for cell in line.strip("|").split("|")]
            yield request[1:-1], int(status), section


def answer(address, request):
    """Sends `request`, and returns all that comes back."""
    received = b""
    with socket.create_connection(address, TIME_MAX) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                received += part
        except OSError:
            pass  # a time-out or a reset: what has come counts
    return received


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    count = differences = 0
    for text, expected, section in rows():
        count += 1
        received = answer((host, int(port)), unescape(text))
        # The last one: a body without a line end may precede it.
        statuses = re.findall(rb"HTTP/1\.[01] (\d{3}) ", received)
        status = int(statuses[-1]) if statuses else None
        if status != expected:
            differences += 1
            print(f"{status or 'none'} instead of {expected} ({section}): {text}")
    print(f"{count} requests, {differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
