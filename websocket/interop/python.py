"""`python.py URL shared|takeover`: the client of `websockets`, with every combination of parameters."""

import asyncio
import itertools
import json
import random
import sys

import websockets
from websockets.asyncio.client import connect
from websockets.extensions.permessage_deflate import (
    ClientPerMessageDeflateFactory,
    PerMessageDeflate,
)

LENGTHS = [0, 1, 63, 64, 1000, 16_384, 70_000, 200_000]


def messages():
    generator = random.Random(1)
    for length in LENGTHS:
        record = {"id": length, "symbol": "ABC", "price": 1.25, "note": "é"}
        text = json.dumps([record] * (length // 50 + 1), ensure_ascii=False)[:length]
        yield from [text, text, text.encode(), generator.randbytes(length)]


async def exchange(url, deflate, values):
    names = ["server_no_context_takeover", "client_no_context_takeover",
             "server_max_window_bits", "client_max_window_bits"]
    asked = dict(zip(names, values))
    factory = ClientPerMessageDeflateFactory(**asked)
    options = {"extensions": [factory], "compression": None, "max_size": None}
    async with connect(url, **options) as socket:
        agreed, = socket.protocol.extensions
        assert isinstance(agreed, PerMessageDeflate)
        takes_over = deflate == "takeover"
        server_keeps = takes_over and not asked["server_no_context_takeover"]
        assert agreed.remote_no_context_takeover == (not server_keeps), agreed
        client_keeps = takes_over and not asked["client_no_context_takeover"]
        assert agreed.local_no_context_takeover == (not client_keeps), agreed
        assert agreed.remote_max_window_bits == (asked["server_max_window_bits"] or 15), agreed
        count = 0
        for message in messages():
            await socket.send(message)
            if count % 5 == 0 and message:  # once more, in fragments
                half = len(message) // 2
                await socket.send([message[:half], message[half:]])
                assert await socket.recv() == message
            assert await socket.recv() == message
            count += 1
        return count


async def main():
    url, deflate = sys.argv[1:]
    flags, windows = [False, True], [None, 9, 12, 15]
    combinations = list(itertools.product(flags, flags, windows, [True, 9, 15]))
    counts = [await exchange(url, deflate, values) for values in combinations]
    print(f"websockets {websockets.__version__}: {sum(counts)} messages, {len(combinations)} combinations")


asyncio.run(asyncio.wait_for(main(), 240))
