"""aiohttp against the server: `aiohttp_client.py URL OBJECTS TOPIC USER:PASSWORD`.

Compares the bodies of objects with the files in the directory OBJECTS. Fails with a traceback.
"""

import asyncio
import base64
import sys
from pathlib import Path

import aiohttp

URL, OBJECTS, TOPIC, PASSWORD = sys.argv[1:]
FILES = {file.name: file.read_bytes() for file in Path(OBJECTS).iterdir()}
AT_ONCE = 50
CONNECTIONS_MAX = 10


async def get(session, name):
    async with session.get(f"{URL}/object/{name}") as response:
        assert response.status == 200, (name, response.status)
        body = b"".join([piece async for piece in response.content.iter_any()])
        assert body == FILES[name], name


async def get_part(session):
    async with session.get(f"{URL}/object/large", headers={"Range": "bytes=70000-79999"}) as response:
        assert response.status == 206, response.status
        assert await response.read() == FILES["large"][70_000:80_000]


async def pieces():
    body = FILES["large"]
    for at in range(0, len(body), 10_007):
        yield body[at : at + 10_007]


async def post(session, body, **more):
    headers = {"Authorization": f"Basic {base64.b64encode(PASSWORD.encode()).decode()}"}
    async with session.post(f"{URL}/events/{TOPIC}/{TOPIC}", data=body, headers=headers, **more) as response:
        answer = await response.json()
        assert response.status == 200 and answer["events"] == 1, (response.status, answer)


async def main():
    connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        names = [name for _ in range(AT_ONCE // len(FILES) + 1) for name in FILES]
        await asyncio.gather(*(get(session, name) for name in names), *(get_part(session) for _ in range(10)))
        await post(session, FILES["large"])
        await post(session, pieces())
        await post(session, pieces(), expect100=True)


asyncio.run(main())
