"""Measures how long a victim waits while neighbours flood. The server has one core, clients the other."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import PLAIN, Failed, Server, expect, running_on
from neighbours import KINDS
from websocket import BINARY, NO_MASK, WebSocket, frame

SERVER_CORE, CLIENTS_CORE = 0, 1
# Neighbours fill the socket buffers in this time.
SETTLE_SECONDS = 0.4
DRAIN_SECONDS = 2
# A victim gives up after this time.
VICTIM_SECONDS_MAX = 10


@dataclass
class Wait:
    """How long a victim waits, in seconds, and how the server ends."""

    p50: float
    p99: float
    echoes: int
    health: float
    drain: float
    status: int | None
    log: str


def measure(setup, name, count, seconds):
    """Measures a victim with one request at a time over WebSocket, while `count` neighbours of a kind flood."""
    kind = KINDS[name]
    listeners = (*PLAIN, "https") if kind.listener == "https" else PLAIN
    options = ("--drain-seconds", str(DRAIN_SECONDS), *kind.options)
    server = Server(setup, options, listeners, SERVER_CORE)
    try:
        raise_priority(server.pid)
        with running_on(CLIENTS_CORE), WebSocket(server.addr(), seconds_max=VICTIM_SECONDS_MAX) as victim:
            with flooded(server, name, count, setup), first_in_line():
                waits = sorted(echoes(victim, seconds))
                health = max(server.health(VICTIM_SECONDS_MAX) for _ in range(5))
                victim.close()
                begun = time.monotonic()
                server.signal(signal.SIGTERM)
                status = server.ended(DRAIN_SECONDS + 5)
                drain = time.monotonic() - begun
        return Wait(
            percentile(waits, 50), percentile(waits, 99), len(waits), health, drain, status, server.log()
        )
    finally:
        server.stop()


def echoes(victim, seconds):
    """Returns how long each of the victim's echoes takes."""
    request = frame(BINARY, b"sixteen bytes...", mask=NO_MASK)
    time.sleep(SETTLE_SECONDS)
    until, waits = time.monotonic() + seconds, []
    while (begun := time.monotonic()) < until or len(waits) < 3:
        victim.send(request)
        expect(victim.message() == b"sixteen bytes...", "another echo")
        waits.append(time.monotonic() - begun)
        time.sleep(0.001)  # so that the server has time for the neighbours
    return waits


def percentile(waits, percent):
    return waits[min(len(waits) - 1, len(waits) * percent // 100)]


@contextmanager
def flooded(server, name, count, setup):
    """Runs neighbours in a process of their own until the end of the block."""
    host, port = server.addr(KINDS[name].listener)
    script = Path(__file__).with_name("neighbours.py")
    command = [sys.executable, "-B", str(script), name, host, str(port), str(count)]
    if KINDS[name].listener == "https":
        command.append(str(setup.cert))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if process.stdout.readline() != b"ready\n":
            raise Failed(f"the neighbours do not get in: {name}")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextmanager
def first_in_line():
    """Gives this thread priority over the neighbours, where that is allowed: that they share a core is not what
    is measured."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        pass
    try:
        yield
    finally:
        try:
            os.sched_setscheduler(0, *before)
        except OSError:
            pass


def raise_priority(pid):
    """Gives the server priority over everything else on this machine, where that is allowed."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), -10)
    except OSError:
        pass
