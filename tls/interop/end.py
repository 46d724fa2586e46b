"""Ends a connection to the echo over TLS, and checks that the server sends close_notify instead of just closing."""

import socket
import ssl
import sys

port, certificate = int(sys.argv[1]), sys.argv[2]
context = ssl.create_default_context(cafile=certificate)
with socket.create_connection(("localhost", port), timeout=20) as plain:
    with context.wrap_socket(
        plain, server_hostname="localhost", suppress_ragged_eofs=False
    ) as stream:
        stream.sendall(b"x" * 100_000)
        echoed = 0
        while echoed < 100_000:
            echoed += len(stream.recv(65536))
        stream.unwrap()  # sends close_notify, and raises unless one comes back
