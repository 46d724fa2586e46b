"""What operators do to a server: options, files, signals, logs that nobody reads, several servers on one port."""

import fcntl
import os
import resource
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from harness import Failed, connect, expect, first_line, last_lines
from registry import add_case, case
from websocket import WebSocket

HTTP = ("--http", "127.0.0.1:0")
F_SETPIPE_SZ = 1031


def start(ctx, *options, seconds_max=8):
    """Starts a server that must end by itself. Returns its exit status, standard error and standard output."""
    command = [str(ctx.setup.binary), "--runtime", ctx.runtime, *options]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        output, errors = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired as error:
        raise Failed("it runs") from error
    finally:
        process.kill()
        process.wait()
    return process.returncode, errors.decode(errors="replace"), output.decode()


def refused(name, *options, names=None):
    """Absurd options: the server prints a sentence, and exits without a crash."""

    def run(ctx):
        status, errors, output = start(ctx, *options)
        expect(status in (1, 2), f"an exit with {status}: {first_line(errors)}")
        expect("panicked" not in errors, errors.strip().splitlines()[:2])
        is_known = "unexpected argument" not in errors or names == "unexpected argument"
        expect(is_known, first_line(errors))
        expect("listening" not in output, f"it listened: {output!r}")
        expect(errors.strip(), "no reason is given")
        expect(names is None or names in errors, first_line(errors))

    add_case(f"options: {name}", "a sentence and an exit with 1 or 2", run)


refused("workers of 2^64 - 1", *HTTP, "--workers", "18446744073709551615")
refused("workers of 10^9", *HTTP, "--workers", "1000000000")
refused("no workers", *HTTP, "--workers", "0")
refused("-1 workers", *HTTP, "--workers=-1")
refused("no connections", *HTTP, "--connections-max", "0")
refused("messages of 4 GiB", *HTTP, "--message-bytes-max", "4294967296")
refused("messages of 0 bytes", *HTTP, "--message-bytes-max", "0")
refused("memory of 0 bytes", *HTTP, "--memory-max", "0", names="memory-max")
refused("memory of a byte", *HTTP, "--memory-max", "1", names="memory-max")
refused("memory of -1 bytes", *HTTP, "--memory-max=-1", names="memory-max")
refused("seconds that are not a number", *HTTP, "--message-seconds-max", "soon")
refused("-1 connections for an address", *HTTP, "--connections-per-address-max=-1")
refused("a log level that is not there", *HTTP, "--log-level", "loud", names="loud")
refused("a malformed origin", *HTTP, "--origins", "not an origin", names="origin")
for origin in ["https://a:99999", "https://a/", "https://user@a", "https://a,https://*.b"]:
    refused(f"--origins {origin}", *HTTP, "--origins", origin, names="--origins")
refused("a drain of 2^32 seconds", *HTTP, "--drain-seconds", "4294967296")
for option in [
    "drain-seconds",
    "drain-notice-seconds",
    "message-seconds-max",
    "idle-seconds-max",
    "linger-seconds",
]:
    refused(f"--{option} of 136 years", *HTTP, f"--{option}", "4294967295", names=option)
refused("connections of 2^64 - 1", *HTTP, "--workers", "1", "--connections-max", "18446744073709551615")
refused("nothing to serve")
refused("a port beyond the last", "--http", "127.0.0.1:65536")
refused("a malformed address", "--http", "256.0.0.1:80")
refused("an address of another machine", "--http", "192.0.2.1:0")
refused("a runtime that is not there", *HTTP, "--runtime", "nonsense")
refused("an option that is not there", *HTTP, "--nonsense", names="unexpected argument")
refused("TLS without a certificate", "--https", "127.0.0.1:0")
refused("a certificate without TLS", *HTTP, "--tls-cert", "x", "--tls-key", "y")
refused(
    "a certificate that is not there",
    "--https",
    "127.0.0.1:0",
    "--tls-cert",
    "/nowhere",
    "--tls-key",
    "/nowhere",
)
refused(
    "a certificate that is a folder", "--https", "127.0.0.1:0", "--tls-cert", "/", "--tls-key", "/", names="/"
)
refused(
    "a certificate that is empty",
    "--https",
    "127.0.0.1:0",
    "--tls-cert",
    "/dev/null",
    "--tls-key",
    "/dev/null",
)
HTTPS = ("--https", "127.0.0.1:0")
refused("a certificate without an end", *HTTPS, "--tls-cert", "/dev/zero", "--tls-key", "/", names="tls-cert")
refused("a file without an end", "--config", "/dev/zero", names="--config: cannot read /dev/zero")
refused("a file that is not there", "--config", "/nowhere", names="/nowhere")
refused("a file that is a folder", "--config", "/", names="/")


def bad_file(name, content):
    def run(ctx):
        with tempfile.NamedTemporaryFile(suffix=".toml") as file:
            file.write(content)
            file.flush()
            status, errors, _ = start(ctx, "--config", file.name)
            expect(
                status in (1, 2) and "panicked" not in errors, f"an exit with {status}: {first_line(errors)}"
            )
            expect(file.name in errors, first_line(errors))

    add_case(f"file: {name}", "a sentence that names the file", run)


bad_file("not TOML", b"http = [")
bad_file("an option that is not there", b'http = "127.0.0.1:0"\nnonsense = 1\n')
bad_file("an option twice", b"workers = 1\nworkers = 2\n")
bad_file("a number where an address is meant", b"http = 80\n")
bad_file("a negative number", b'http = "127.0.0.1:0"\nworkers = -1\n')
bad_file("a number beyond 64 bits", b'http = "127.0.0.1:0"\nworkers = 99999999999999999999\n')
bad_file("bytes that are not UTF-8", b'http = "\xff\xfe"\n')
bad_file("NUL bytes", b"\0" * 1000)
bad_file("brackets, 100,000 deep", b"http = " + b"[" * 100_000)
bad_file("a table where an option is meant", b"[http]\naddr = 1\n")


def absurd_but_fine(name, *options):
    """Unusual options that have a meaning."""

    def run(ctx):
        with ctx.fresh(*options) as server:
            with WebSocket(server.addr()) as websocket:
                websocket.echo()
            server.check()
            server.signal(signal.SIGTERM)
            status = server.ended(3)
            expect(status == 0, f"an exit with {status}: {server.log()[-200:]}")

    add_case(f"options: {name}", "a server that serves, and ends with 0", run)


absurd_but_fine("a drain of a year", "--drain-seconds", "31536000")
absurd_but_fine("a drain of no seconds", "--drain-seconds", "0")
absurd_but_fine("messages with a year", "--message-seconds-max", "31536000")
absurd_but_fine("an idle time of a year", "--idle-seconds-max", "31536000")
absurd_but_fine("messages of 4 GiB less one", "--message-bytes-max", "4294967295")
absurd_but_fine("memory of 2^63 bytes", "--memory-max", "9223372036854775807")
absurd_but_fine("no end to idleness", "--idle-seconds-max", "0")
absurd_but_fine("any number of connections for an address", "--connections-per-address-max", "0")
absurd_but_fine("100 connections for an address", "--connections-per-address-max", "100")


@case("signals: SIGHUP without TLS", "a server that goes on")
def hangup_without_tls(ctx):
    with ctx.fresh() as server:
        for _ in range(3):
            server.signal(signal.SIGHUP)
            time.sleep(0.1)
        server.check("after SIGHUP")


@contextmanager
def server_with_own_files(ctx):
    with tempfile.TemporaryDirectory(dir=ctx.setup.dir) as directory:
        cert, key = Path(directory, "cert.pem"), Path(directory, "key.pem")
        cert.write_bytes(ctx.setup.cert.read_bytes())
        key.write_bytes(ctx.setup.key.read_bytes())
        options = ["--tls-cert", str(cert), "--tls-key", str(key)]
        with ctx.fresh(*options, listeners=("http", "https")) as server:
            yield server, cert, key


def hangup(name, spoil):
    """SIGHUP with spoiled files: the certificate stays, and later signals are handled."""

    def run(ctx):
        with server_with_own_files(ctx) as (server, cert, key):
            spoil(cert, key)
            server.signal(signal.SIGHUP)
            time.sleep(0.5)
            with ctx.tls.wrap_socket(connect(server.addr("https")), server_hostname="localhost") as sock:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                expect(sock.recv(100).startswith(b"HTTP/1.1 200 "), "no /health over TLS")
            server.check("after SIGHUP")
            expect_exit(server)

    add_case(f"signals: SIGHUP, and {name}", "the certificate stays, and SIGTERM ends it", run)


def expect_exit(server):
    """Fails unless SIGTERM ends the server within 4 s, with 0."""
    server.signal(signal.SIGTERM)
    status = server.ended(4)
    expect(status == 0, "no end within 4 s of SIGTERM" if status is None else f"an exit with {status}")


def as_fifo(path):
    path.unlink()
    os.mkfifo(path)


hangup("the certificate is a FIFO that nobody writes to", lambda cert, key: as_fifo(cert))
hangup("the key is a FIFO that nobody writes to", lambda cert, key: as_fifo(key))
hangup("the certificate is gone", lambda cert, key: cert.unlink())
hangup("the key is another's", lambda cert, key: key.write_text("nonsense"))
hangup("the certificate is empty", lambda cert, key: cert.write_text(""))
hangup("the certificate is a folder", lambda cert, key: (cert.unlink(), cert.mkdir()))
hangup("the certificate is 16 MiB of text", lambda cert, key: cert.write_text("nonsense\n" * 1_900_000))


@case("signals: SIGHUP, 300 times within a second or two", "at most one reading and line a second", "waiting")
def hangup_storm(ctx):
    for listener in ["http", "https"]:
        # A busy machine may stall a worker, and that has lines of its own.
        listeners = ("http", listener) if listener != "http" else ("http",)
        with ctx.fresh("--stalls", "off", listeners=listeners) as server:
            before, begun = server.log().count("\n"), time.monotonic()
            for _ in range(300):
                server.signal(signal.SIGHUP)
                time.sleep(0.003)
            time.sleep(1.5)  # for the reading of what came last
            lines, seconds = server.log().count("\n") - before, time.monotonic() - begun
            expect(1 <= lines <= 2 + seconds, f"{lines} lines in {seconds:.1f} s over {listener}")
            expect_exit(server)


@contextmanager
def log_unread(ctx, *options, listeners=("http",)):
    """A server whose standard error is a pipe of 4 KiB that nobody reads. At the end of the block, SIGTERM must
    end it."""
    reading, writing = os.pipe()
    try:
        fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
        with ctx.fresh(*options, listeners=listeners, log=writing) as server:
            os.close(writing)
            yield server
            expect_exit(server)
    finally:
        os.close(reading)


def bad_requests(server, count):
    """Each is a line of some 100 bytes at --log-level debug."""
    for _ in range(count):
        with connect(server.addr()) as sock:
            sock.sendall(b"nonsense\r\n\r\n")
            sock.recv(1000)


@case(
    "logs: standard error is a pipe that nobody reads, and fills up",
    "/health and echoes go on, and SIGTERM ends it",
    "alone",
)
def stuck_log(ctx):
    with log_unread(ctx, "--log-level", "debug", listeners=("http", "https")) as server:
        bad_requests(server, 100)  # more than twice the pipe
        for _ in range(20):  # each is logged, by other threads than the workers
            server.signal(signal.SIGHUP)
            time.sleep(0.1)
        server.health()
        with WebSocket(server.addr()) as websocket:
            websocket.echo()


@case(
    "logs: the same, and each connection is logged (--log-level debug)",
    "/health goes on, and SIGTERM ends it",
    "alone",
)
def stuck_log_of_workers(ctx):
    with log_unread(ctx, "--log-level", "debug") as server:
        bad_requests(server, 300)
        server.health()


@case(
    "logs: standard error is a file that has reached its greatest size (ulimit -f)",
    "/health goes on, what is not written is counted, and SIGTERM ends it",
    "alone",
)
def full_log(ctx):
    with ctx.fresh("--log-level", "debug") as server:
        bad_requests(server, 20)
        limit = len(server.log()) + 100
        server.limit(resource.RLIMIT_FSIZE, limit)
        greatest = max(limit, len(server.log()))  # lines of the 20 may have come before the limit did
        bad_requests(server, 50)
        expect(server.is_alive(), f"an end with {server.process.returncode}")
        server.health()
        expect(len(server.log()) <= greatest, f"{len(server.log())} bytes of log, not {greatest}")
        server.limit(resource.RLIMIT_FSIZE, resource.prlimit(server.pid, resource.RLIMIT_FSIZE)[1])
        bad_requests(server, 1)
        time.sleep(0.2)
        expect("lines of the log were dropped" in server.log(), last_lines(server.log()))
        expect_exit(server)


@case("logs: standard error is closed by its reader", "a server that goes on, and ends with 0", "alone")
def closed_log(ctx):
    reading, writing = os.pipe()
    with ctx.fresh(listeners=("http", "https"), log=writing) as server:
        os.close(writing)
        os.close(reading)
        for _ in range(20):
            server.signal(signal.SIGHUP)
            time.sleep(0.005)
        server.health()
        server.signal(signal.SIGTERM)
        status = server.ended(4)
        expect(status == 0, f"an exit with {status}")


@case(
    "logs: bad clients, 2,000 of them within a second or two",
    "at most 40 lines at the default level",
    "alone",
)
def loud_clients(ctx):
    with ctx.fresh() as server:
        for n in range(2000):
            with connect(server.addr()) as sock:
                sock.sendall(b"nonsense\r\n\r\n" if n % 2 else b"\x16\x03\x01")
        lines = server.log().count("\n")
        server.check()
        expect(lines <= 40, f"{lines} lines")


@case("start: three servers on one port, 100 times", "exactly one of them listens, each time", "alone")
def servers_on_one_port(ctx):
    outcomes = []
    for _ in range(100):
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = chosen.getsockname()[1]
        # Each shell stops before it becomes the server, so that all can continue at once.
        command = [
            "sh",
            "-c",
            'kill -STOP $$; exec "$@"',
            "sh",
            str(ctx.setup.binary),
            "--runtime",
            ctx.runtime,
            "--workers",
            "1",
            "--http",
            f"127.0.0.1:{port}",
        ]
        started = [
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            for _ in range(3)
        ]
        try:
            for process in started:
                os.waitpid(process.pid, os.WUNTRACED)
            for process in started:
                process.send_signal(signal.SIGCONT)
            outcomes.append(how_many_listen(started))
        finally:
            for process in started:
                process.kill()
                process.wait()
                process.stdout.close()
    wrong = {count: outcomes.count(count) for count in set(outcomes) - {1}}
    expect(not wrong, ", ".join(f"{count} listen in {times} of 100" for count, times in wrong.items()))


def how_many_listen(processes):
    """Waits until each process listens or has ended. Returns how many listen."""
    listening = 0
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.stdout, selectors.EVENT_READ)
        deadline = time.monotonic() + 10
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(0.5):
                selector.unregister(key.fileobj)
                listening += os.read(key.fd, 1000).startswith(b"listening ")
    return listening
