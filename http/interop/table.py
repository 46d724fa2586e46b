"""The table of requests, http/requests.md: its rows as bytes and statuses, and what a server answers to them."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).resolve().parent.parent / "requests.md"
# A server answers at once what it refuses. A debug build on a busy machine takes longer.
ANSWER_SECONDS_MAX = 10
ESCAPES = {"r": b"\r", "n": b"\n", "t": b"\t", "0": b"\0"}
# What is answered without a head.
BODY_ALONE = "0.9"


@dataclass
class Row:
    text: str
    # The statuses of all answers, in order, with spaces between them, or `none`.
    ours: str
    nginx: str
    # The word that says why nginx differs. Empty if it does not.
    word: str
    refusal: str
    section: str

    @property
    def request(self):
        return unescape(self.text)


def read():
    """The rows, and what each word means. Raises ValueError if a row is malformed."""
    rows, words = [], {}
    heading = None
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("| `"):
            rows.append(parse(line, cells))
        elif heading == "Why nginx differs" and line.startswith("| ") and cells[0] != "word":
            words[cells[0]] = cells[1]
    return rows, words


def parse(line, cells):
    if len(cells) != 5:
        raise ValueError(f"not five cells: {line}")
    text, ours, nginx, refusal, section = cells
    nginx, _, word = (nginx or ours).partition(": ")
    return Row(text.strip("`"), ours, nginx, word, refusal.strip("`"), section)


def unexplained(rows, words):
    """What is wrong with the words: a difference has none, or they are not those of the last section."""
    wrong = [f"nginx differs without a word, or the other way round: {row.text}"
             for row in rows if (row.nginx == row.ours) != (row.word == "")]  # fmt: skip
    used = {row.word for row in rows if row.word}
    return wrong + [f"only rows have this word, or only the last section: {word}" for word in used ^ set(words)]


def write(found):
    """Replaces what the rows say about nginx by what it has answered, in the order of the rows.

    A difference that is new gets `?` as its word.
    """
    lines, left = [], iter(found)
    for line in TABLE.read_text().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            row, answers = parse(line, cells), next(left)
            word = row.word if answers == row.nginx else "?"
            cells[2] = "" if answers == row.ours else f"{answers}: {word or '?'}"
            line = f"| {' | '.join(cells)} |"
        lines.append(line)
    TABLE.write_text("\n".join(lines) + "\n")


def unescape(text):
    """Replaces `\\r`, `\\n`, `\\t`, `\\0`, `\\xNN`, and `{TEXT*N}` by TEXT, N times."""
    parts = []
    for match in re.finditer(r"\{(.*?)\*(\d+)\}|\\x(..)|\\(.)|(.)", text):
        repeated, times, code, escape, plain = match.groups()
        if times:
            parts.append(unescape(repeated) * int(times))
        elif code:
            parts.append(bytes([int(code, 16)]))
        else:
            parts.append(ESCAPES[escape] if escape else plain.encode())
    return b"".join(parts)


def statuses(address, request):
    """The statuses of what a server answers to bytes, with our end behind them: as in `Row.ours`."""
    try:
        received = exchange(address, request)
    except socket.timeout:
        return "no end"
    # Not at the start of lines only: a body without a line end may precede a head.
    found = re.findall(rb"HTTP/1\.[01] (\d{3}) ", received)
    final = [status.decode() for status in found if status != b"100"]
    return " ".join(final) or (BODY_ALONE if received and not found else "none")


def exchange(address, request):
    received = b""
    with socket.create_connection(address, ANSWER_SECONDS_MAX) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # the server has answered and ended before it was sent everything
        try:
            while part := connection.recv(65536):
                received += part
        except ConnectionError:
            pass  # a reset: what has come counts
    return received
