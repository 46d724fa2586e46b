"""Iggy's Python client against the server: what it has of streams, topics, messages, consumer groups and offsets.

client.py TRANSPORT ADDR PASSWORD MESSAGES, where TRANSPORT is `tcp` or `websocket`.
"""

import asyncio
import hashlib
import os
import sys
from datetime import timedelta

from apache_iggy import AutoCommit, IggyClient, PollingStrategy, SendMessage

BATCH = 1000
SECONDS_MAX = 280


def payload(n):
    """Of 0 to 999 bytes, each message its own."""
    return (hashlib.sha256(str(n).encode()).digest() * 32)[: n * 7 % 1000]


async def connected(transport, addr, password):
    scheme = {"tcp": "iggy+tcp", "websocket": "iggy+ws"}[transport]
    client = IggyClient.from_connection_string(f"{scheme}://iggy:{password}@{addr}")
    await client.connect()
    await client.login_user("iggy", password)
    return client


async def refused(operation, part):
    """Fails unless the operation is refused for a reason with this part."""
    try:
        await operation
    except Exception as error:  # noqa: BLE001 the client raises several types
        assert part.lower() in str(error).lower(), error
    else:
        raise AssertionError(f"not refused: {part}")


async def run(transport, addr, password, messages):
    client = await connected(transport, addr, password)
    await client.ping()
    name = f"python-{transport}"
    assert await client.get_stream(name) is None
    await client.create_stream(name)
    await refused(client.create_stream(name), "exists")
    stream = await client.get_stream(name)
    assert (stream.name, stream.topics_count, stream.messages_count) == (name, 0, 0)
    await client.create_topic(stream=name, name="some", partitions_count=2)
    await refused(client.create_topic(stream=name, name="some", partitions_count=1), "exists")
    topic = await client.get_topic(name, "some")
    assert (topic.name, topic.partitions_count, topic.messages_count) == ("some", 2, 0)

    async def poll(partition, strategy, count=10, auto_commit=False):
        polled = await client.poll_messages(name, "some", partition, strategy, count, auto_commit)
        return [(message.offset(), message.payload()) for message in polled]

    # By offset, first, last, next; with offsets that are stored and not.
    sent = [payload(n) or b"-" for n in range(5)]
    await client.send_messages(name, "some", 1, [SendMessage(message) for message in sent])
    everything = list(enumerate(sent))
    assert await poll(1, PollingStrategy.First()) == everything
    assert await poll(0, PollingStrategy.First()) == []
    assert await poll(1, PollingStrategy.Offset(3)) == everything[3:]
    assert await poll(1, PollingStrategy.Last(), 2) == everything[-2:]
    assert await poll(1, PollingStrategy.Timestamp(0)) == everything
    assert await poll(1, PollingStrategy.Next(), 2, True) == everything[:2]
    assert await poll(1, PollingStrategy.Next(), 9, True) == everything[2:]
    assert await poll(1, PollingStrategy.Next(), 9, True) == []
    await refused(client.send_messages(name, "none", 0, [SendMessage("x")]), "")
    await refused(client.poll_messages(name, "some", 7, PollingStrategy.First(), 1, False), "")

    # Many, in order, by two connections; a consumer group reads them.
    await client.create_topic(stream=name, name="many", partitions_count=1)
    group = await (await connected(transport, addr, password)).consumer_group(
        "readers",
        name,
        "many",
        0,
        PollingStrategy.Next(),
        BATCH,
        auto_commit=AutoCommit.Interval(timedelta(milliseconds=10)),
        poll_interval=timedelta(milliseconds=1),
    )

    async def produce():
        for first in range(0, messages, BATCH):
            batch = range(first, min(first + BATCH, messages))
            await client.send_messages(name, "many", 0, [SendMessage(payload(n) or b"-") for n in batch])

    producing = asyncio.ensure_future(produce())
    received = 0
    async for message in group.iter_messages():
        assert message.offset() == received, f"offset {message.offset()}, expected {received}"
        assert message.payload() == (payload(received) or b"-"), f"message {received} differs"
        received += 1
        if received == messages:
            break
    await producing
    assert (await client.get_topic(name, "many")).messages_count == messages
    print(f"{transport}: {messages} messages each way, in order, unchanged")


asyncio.run(asyncio.wait_for(run(*sys.argv[1:4], int(sys.argv[4])), SECONDS_MAX))
# The threads of the client outlive the loop. One that asks for the interpreter while it is finalized aborts the process
# (apache-iggy 0.8.0 on Python 3.11, one run in fifteen on a busy machine). So the process ends without finalizing it.
sys.stdout.flush()
os._exit(0)
