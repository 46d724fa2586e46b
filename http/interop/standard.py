"""Python's http.client against the server: `standard.py URL OBJECTS TOPIC USER:PASSWORD`.

Compares the bodies of objects with the files in the directory OBJECTS. Fails with a traceback.
"""

import base64
import http.client
import io
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

URL, OBJECTS, TOPIC, PASSWORD = sys.argv[1:]
ADDRESS = (urlsplit(URL).hostname, urlsplit(URL).port)
FILES = {file.name: file.read_bytes() for file in Path(OBJECTS).iterdir()}
SECONDS_MAX = 20
# Rounds of four requests. Their 18 KB fit into the buffers of the sockets, so all are sent before an answer is read.
PIPELINED = 100


def get(connection, name, expected=200, **headers):
    connection.request("GET", f"/object/{name}", headers=headers)
    response = connection.getresponse()
    body = response.read()
    assert response.status == expected, (name, response.status, body[:80])
    return body


def kept_alive():
    connection = http.client.HTTPConnection(*ADDRESS, timeout=SECONDS_MAX)
    connection.connect()
    first = connection.sock
    for _ in range(20):
        for name, content in FILES.items():
            assert get(connection, name) == content, name
        get(connection, "missing", 404)
        large = FILES["large"]
        for at in [0, 1, 4_095, 65_536, len(large) - 1]:
            part = get(connection, "large", 206, Range=f"bytes={at}-{at + 9_999}")
            assert part == large[at : at + 10_000], at
        connection.request("HEAD", "/object/large")
        assert connection.getresponse().read() == b""
    assert connection.sock is first, "the server has ended the connection"
    connection.close()


def posted():
    connection = http.client.HTTPConnection(*ADDRESS, timeout=SECONDS_MAX)
    headers = {"Authorization": f"Basic {base64.b64encode(PASSWORD.encode()).decode()}"}
    body = FILES["large"]
    pieces = [body[at : at + 10_007] for at in range(0, len(body), 10_007)]
    for content in [body, iter(pieces), b"e"]:
        connection.request("POST", f"/events/{TOPIC}/{TOPIC}", content, headers, encode_chunked=True)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200 and b'"events":1' in answer, (response.status, answer)
    connection.close()


class Shared(io.BufferedReader):
    """A reader that several responses have one after the other: each of them closes it."""

    def close(self):
        pass

    def makefile(self, _mode):
        return self


def pipelined():
    names = [name for _ in range(PIPELINED) for name in ["small", "odd", "missing", "empty"]]
    requests = "".join(f"GET /object/{name} HTTP/1.1\r\nHost: a\r\n\r\n" for name in names)
    with socket.create_connection(ADDRESS, SECONDS_MAX) as connection:
        connection.sendall(requests.encode())
        reader = Shared(connection.makefile("rb", buffering=0))
        for name in names:
            response = http.client.HTTPResponse(reader)
            response.begin()
            body = response.read()
            assert response.status == (200 if name in FILES else 404), (name, response.status)
            assert body == FILES.get(name, body), name


kept_alive()
posted()
pipelined()
