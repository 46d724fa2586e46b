"""A worker holds no more than its budget, whatever its peers do. A failed allocation ends one connection."""

import resource
import time

from harness import MIB, SLACK, Failed, expect
from memory import ATTACKS, BUDGET_BYTES, LIMIT_BYTES, measure
from registry import add_case, case
from websocket import BINARY, NO_MASK, WebSocket, frame


def bounded(name):
    # On a busy machine a newcomer may have to wait for any time.
    is_served = SLACK == 1

    def run(ctx):
        peak = measure(ctx.setup, name)
        expect(peak.peak_bytes <= LIMIT_BYTES, f"{peak.peak_bytes / MIB:.0f} MiB")
        if is_served:
            expect(peak.neighbour is None, f"a client that behaves: {peak.neighbour}")

    add_case(
        f"memory: {name}",
        f"at most {LIMIT_BYTES // MIB} MiB with --memory-max {BUDGET_BYTES // MIB} MiB"
        + (", and a newcomer served" if is_served else ""),
        run,
        "alone",
    )


for name in ATTACKS:
    bounded(name)


# The heap's fragments make the peak jump by 20 MiB at times, at any repetition, and then it stays. What leaks grows
# with each repetition instead. So the peak has to settle: ten repetitions in a row that add 4 MiB at the most.
SETTLED_REPETITIONS = 10
SETTLED_BYTES = 4 * MIB
REPETITIONS_MAX = 60


@case(
    "memory: an attack that is repeated",
    f"a peak that settles: {SETTLED_REPETITIONS} repetitions add at most {SETTLED_BYTES // MIB} MiB",
    "alone",
)
def repeated(ctx):
    from memory import upgraded, push, close

    with ctx.fresh("--memory-max", str(BUDGET_BYTES)) as server:
        peaks = []
        while len(peaks) < REPETITIONS_MAX:
            sockets = upgraded(server, 30)
            push(
                [socket.sock for socket in sockets],
                [frame(BINARY, bytes(MIB), mask=NO_MASK)] * 30,
                8 * MIB,
                0.5,
            )
            close(sockets)
            time.sleep(0.1)
            peaks.append(server.peak_bytes())
            if len(peaks) > SETTLED_REPETITIONS and peaks[-1] - peaks[-1 - SETTLED_REPETITIONS] <= SETTLED_BYTES:
                break
        else:
            raise Failed([peak // MIB for peak in peaks])
        server.check()
        expect(peaks[-1] <= LIMIT_BYTES, f"{peaks[-1] / MIB:.0f} MiB")


@case(
    "memory: an allocation that fails (RLIMIT_AS)",
    "it ends the connections that asked for it; /health and others' echoes go on",
    "alone",
)
def failed_allocation(ctx):
    with ctx.fresh() as server:
        bystander = WebSocket(server.addr())
        for _ in range(20):
            bystander.echo(bytes(1000))
        server.limit(resource.RLIMIT_AS, server.address_space_bytes() + 40 * MIB)
        sockets = [WebSocket(server.addr()) for _ in range(10)]
        for socket in sockets:
            socket.send(frame(BINARY, b"a", length=16 * MIB))
        time.sleep(0.5)
        for socket in sockets:
            socket.sock.settimeout(0.5)
            try:
                socket.sock.sendall(bytes(15 * MIB))
            except OSError:
                pass
        time.sleep(0.5)
        expect(
            server.is_alive(), f"the server has ended with {server.process.returncode}: {server.log()[-120:]}"
        )
        bystander.echo(b"unharmed")
        for socket in sockets:
            socket.close()
        time.sleep(0.2)
        server.check()
        bystander.close()


@case(
    "memory: allocations that fail for messages in fragments (RLIMIT_AS)",
    "they end the connections that asked; /health goes on",
    "alone",
)
def failed_growth(ctx):
    from memory import upgraded, push, close
    from websocket import CONTINUATION

    with ctx.fresh() as server:
        server.health()
        server.limit(resource.RLIMIT_AS, server.address_space_bytes() + 40 * MIB)
        sockets = upgraded(server, 20)
        for socket in sockets:
            socket.send(frame(BINARY, b"", fin=False))
        piece = frame(CONTINUATION, bytes(60_000), fin=False, mask=NO_MASK)
        push([socket.sock for socket in sockets], [piece] * 20, 15 * MIB)
        time.sleep(0.5)
        expect(
            server.is_alive(), f"the server has ended with {server.process.returncode}: {server.log()[-120:]}"
        )
        close(sockets)
        time.sleep(0.2)
        server.check()
