"""The log of Iggy's messages: servers that are killed, files that are damaged, disks that take no more."""

import os
import random
import resource
import shutil
import struct
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness import MIB, Failed, Refused, Server, expect, small_disk
from iggy import (
    OK,
    TOPIC_FULL,
    Client,
    by_name,
    create_stream,
    create_topic,
    delete_topic,
    message,
    options,
    poll,
    purge_topic,
    send,
)
from registry import case

LISTENERS = ("tcp", "http")
WHERE = by_name("some"), by_name("some")
PARTITIONS = 3

# How often the server is killed. 100 in .ci/full.
KILLS = int(os.environ.get("ATTACK_KILLS", "5"))


@contextmanager
def directory(ctx):
    path = Path(tempfile.mkdtemp(dir=ctx.setup.dir))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def start(ctx, data, *more, launcher=()):
    return Server(ctx.setup, [*options(ctx.setup), "--data", str(data), *more], LISTENERS, launcher=launcher)


def create(server):
    with Client(server.addr("tcp")) as iggy:
        iggy.ask(create_stream("some"), OK)
        iggy.ask(create_topic(WHERE[0], "some", PARTITIONS), OK)


def payload(partition, n):
    """Of 12 to some 3,000 bytes, and each its own."""
    head = struct.pack("<IQ", partition, n)
    return head + random.Random(f"{partition} {n}").randbytes(n * 31 % 3000)


def polled(iggy, partition, offset):
    """The payloads from this offset on, as many as come at once."""
    answer = iggy.ask(poll(*WHERE, partition, offset, count=1000), OK)
    count, at, payloads = struct.unpack("<I", answer[12:16])[0], 16, []
    for _ in range(count):
        _, its_offset = struct.unpack_from("<16sQ", answer, at + 8)
        headers, length = struct.unpack_from("<II", answer, at + 48)
        expect(its_offset == offset + len(payloads), f"offset {its_offset} where {offset + len(payloads)} is due")
        payloads.append(answer[at + 64 : at + 64 + length])
        at += 64 + length + headers
    expect(at == len(answer), f"{len(answer) - at} bytes behind the messages")
    return payloads


def check(server, acknowledged, submitted):
    """Everything that was acknowledged is there, in order; nothing is there that was not submitted. Returns how many
    messages each partition has."""
    stored = []
    with Client(server.addr("tcp")) as iggy:
        for partition in range(PARTITIONS):
            n = 0
            while payloads := polled(iggy, partition, n):
                for one in payloads:
                    expect(one == payload(partition, n), f"message {n} of partition {partition} is another one")
                    n += 1
            sent, kept = submitted[partition], acknowledged[partition]
            expect(kept <= n <= sent, f"{n} messages: {kept} were acknowledged, {sent} submitted")
            stored.append(n)
    return stored


def send_next(iggy, partition, acknowledged, submitted):
    """Sends the batch behind the acknowledged ones. Returns the status."""
    first = acknowledged[partition]
    count = 1 + first % 7
    submitted[partition] = first + count
    batch = [message(payload(partition, n)) for n in range(first, first + count)]
    iggy.sock.sendall(send(*WHERE, batch, partition))
    status, _ = iggy.receive()
    if status == OK:
        acknowledged[partition] = first + count
    return status


def produce(addr, partition, acknowledged, submitted):
    """Sends batches until the server is killed."""
    try:
        with Client(addr) as iggy:
            while send_next(iggy, partition, acknowledged, submitted) == OK:
                pass
    except (OSError, Failed):
        pass  # it was killed


@case("durability: a server that is killed again and again", "every acknowledged message, once, in order", kind="waiting")
def killed(ctx):
    chance = random.Random(KILLS)
    with directory(ctx) as data:
        server = start(ctx, data, "--fsync", "batch")
        create(server)
        acknowledged, submitted = [0] * PARTITIONS, [0] * PARTITIONS
        for _ in range(KILLS):
            addr = server.addr("tcp")
            producers = [
                threading.Thread(target=produce, args=(addr, partition, acknowledged, submitted))
                for partition in range(PARTITIONS)
            ]
            for producer in producers:
                producer.start()
            time.sleep(chance.uniform(0.02, 0.4))
            server.kill()
            for producer in producers:
                producer.join()
            server = start(ctx, data, "--fsync", "batch")
            # What was stored and not acknowledged counts from now on: it is there to stay.
            acknowledged = check(server, acknowledged, submitted)
        server.stop()
        expect(min(acknowledged) > 0, f"{acknowledged} messages")


@case("durability: a second server on the same directory", "no start, and a sentence that names it", kind="waiting")
def second_server(ctx):
    with directory(ctx) as data:
        first = start(ctx, data)
        try:
            try:
                start(ctx, data).stop()
                raise Failed("it starts")
            except Refused as refused:
                expect(str(data) in refused.output, refused.output)
            create(first)  # it goes on
        finally:
            first.stop()


@case("durability: a directory that is a file", "no start, and a sentence that names it", kind="waiting")
def not_a_directory(ctx):
    with directory(ctx) as data:
        file = data / "file"
        file.write_text("not a directory")
        try:
            start(ctx, file).stop()
            raise Failed("it starts")
        except Refused as refused:
            expect(str(file) in refused.output, refused.output)


def stop(server):
    """Ends the server by its drain."""
    server.signal(15)
    expect(server.ended(10) == 0, "the drain does not end with 0")
    server.process.stdout.close()


def filled(ctx, data, messages=300):
    """A directory with messages in partition 0, whose server has ended."""
    server = start(ctx, data, "--fsync", "never")
    create(server)
    with Client(server.addr("tcp")) as iggy:
        for n in range(messages):
            iggy.ask(send(*WHERE, [message(payload(0, n))]), OK)
    stop(server)
    files = sorted(data.glob("partitions/*/*.log"), key=lambda file: file.stat().st_size)
    expect(files, "no segment")
    return files[-1]


@case("durability: a log whose last bytes are missing", "the messages before them", kind="waiting")
def torn_tail(ctx):
    for cut in [1, 40, 1000]:
        with directory(ctx) as data:
            segment = filled(ctx, data)
            with segment.open("r+b") as file:
                # Behind the messages a segment may have room: bytes of 0.
                end = len(file.read().rstrip(b"\0"))
                file.truncate(end - cut)
            server = start(ctx, data)
            stored = check(server, [290, 0, 0], [300, 0, 0])
            expect(stored[0] < 300, f"{stored[0]} messages, and {cut} bytes are missing")
            with Client(server.addr("tcp")) as iggy:
                iggy.ask(send(*WHERE, [message(payload(0, stored[0]))]), OK)
            check(server, [stored[0] + 1, 0, 0], [stored[0] + 1, 0, 0])
            server.stop()


@case("durability: a byte in the middle of a log that is wrong", "an error or the messages before, no panic", kind="waiting")
def wrong_byte(ctx):
    with directory(ctx) as data:
        segment = filled(ctx, data)
        with segment.open("r+b") as file:
            file.seek(segment.stat().st_size // 4)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0x55]))
        try:
            server = start(ctx, data)
        except Refused as refused:
            expect(str(segment.parent) in refused.output and "panicked" not in refused.output, refused.output)
            return
        with Client(server.addr("tcp")) as iggy:
            n = 0
            while True:
                iggy.sock.sendall(poll(*WHERE, 0, n, count=10))
                status, answer = iggy.receive()
                if status != OK or struct.unpack("<I", answer[12:16])[0] == 0:
                    break
                for one in polled(iggy, 0, n)[:10]:
                    expect(one == payload(0, n), f"message {n} is another one")
                    n += 1
            expect(n < 300, "all messages are there")
            iggy.ask(send(*WHERE, [message(payload(1, 0))], 1), OK)  # another partition goes on
        server.check()
        server.stop()


@case("durability: a disk that takes no more (RLIMIT_FSIZE)", "a refusal, and nothing lost", kind="waiting")
def no_more(ctx):
    with directory(ctx) as data:
        server = start(ctx, data, "--fsync", "batch")
        create(server)
        n = 0
        with Client(server.addr("tcp")) as iggy:
            while n < 50:
                iggy.ask(send(*WHERE, [message(payload(0, n))]), OK)
                n += 1
            longest = max(file.stat().st_size for file in data.glob("partitions/*/*.log"))
            server.limit(resource.RLIMIT_FSIZE, longest + 10_000)
            while n < 20_000:
                iggy.sock.sendall(send(*WHERE, [message(payload(0, n))]))
                if iggy.receive()[0] != OK:
                    break
                n += 1
            expect(n < 20_000, "nothing is refused")
            iggy.ping()
        server.check()
        server.kill()
        server = start(ctx, data)
        check(server, [n, 0, 0], [n + 1, 0, 0])
        server.stop()


# Filled in a second. A tenth is for each of two topics, which are removed to make room.
DISK_BYTES = 12 * MIB
FILLERS = by_name("deleted"), by_name("purged")


def fill(clients, acknowledged, submitted):
    """All producers at once send until they are refused. Fails unless that is because the disk is full."""
    statuses = [None] * PARTITIONS

    def produce_until_refused(partition):
        status = OK
        while status == OK and acknowledged[partition] < 100_000:
            status = send_next(clients[partition], partition, acknowledged, submitted)
        statuses[partition] = status
        clients[partition].ping()  # the connection goes on

    with ThreadPoolExecutor(PARTITIONS) as pool:
        for done in [pool.submit(produce_until_refused, partition) for partition in range(PARTITIONS)]:
            done.result()
    expect(set(statuses) == {TOPIC_FULL}, f"statuses {statuses}")


@case("durability: a full disk (tmpfs)", "TopicFull, all else goes on, and so do appends once there is room", kind="waiting")
def full_disk(ctx):
    with directory(ctx) as mounted, small_disk(mounted, DISK_BYTES) as (launcher, seen):
        data = mounted / "data"
        server = start(ctx, data, "--fsync", "batch", launcher=launcher)
        try:
            create(server)
            acknowledged, submitted = [0] * PARTITIONS, [0] * PARTITIONS
            with Client(server.addr("tcp")) as other, ExitStack() as stack:
                clients = [stack.enter_context(Client(server.addr("tcp"))) for _ in range(PARTITIONS)]
                for filler in FILLERS:
                    other.ask(create_topic(WHERE[0], filler[2:].decode()), OK)
                    for _ in range(DISK_BYTES // 10 // 100_000):
                        other.ask(send(WHERE[0], filler, [message(bytes(100_000))]), OK)
                for make_room in (delete_topic, purge_topic):
                    fill(clients, acknowledged, submitted)
                    free = os.statvfs(seen).f_bavail * os.statvfs(seen).f_frsize
                    # The longest batch of each producer may not fit.
                    expect(free < PARTITIONS * 7 * 3100, f"{free} bytes are free")
                    check(server, acknowledged, submitted)  # by a connection that begins now
                    server.check()
                    other.ask(make_room(WHERE[0], FILLERS[make_room is purge_topic]), OK)
                    for partition, client in enumerate(clients):
                        status = send_next(client, partition, acknowledged, submitted)
                        expect(status == OK, f"status {status} although there is room again")
                fill(clients, acknowledged, submitted)
            server.kill()
            server = start(ctx, data, launcher=launcher)  # the disk is still full
            check(server, acknowledged, submitted)
            server.check()
        finally:
            server.stop()
