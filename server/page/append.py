#!/usr/bin/env python3
"""Appends messages to topic `browser` of stream `browser`, which are created with `--create`.

    append.py HOST:PORT [--create] PAYLOAD...

The client is the one of server/attack.
"""

import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "attack"))

from iggy import OK, Client, by_name, create_stream, create_topic, message, send  # noqa: E402

host, port = sys.argv[1].rsplit(":", 1)
payloads = sys.argv[2:]
name = by_name("browser")
with Client((host, int(port))) as client:
    if payloads[:1] == ["--create"]:
        client.ask(create_stream("browser"), OK)
        client.ask(create_topic(name, "browser"), OK)
        payloads = payloads[1:]
    if payloads:
        client.ask(send(name, name, [message(payload.encode()) for payload in payloads]), OK)
