"""Starts, stops and observes servers: everything that a case needs apart from protocols.

A server is observed by its process id, the lines `listening NAME ADDR` of its standard output, its log, and /proc.
Nothing here depends on its code.
"""

import os
import re
import resource
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

RUNTIMES = ["tokio", "tokio-uring", "compio", "monoio", "glommio"]

PLAIN = ("http", "echo", "sink", "source")
OVER_TLS = ("https", "echo-tls", "sink-tls", "source-tls")

# A server listens within 50 ms; a debug build on a busy machine takes longer.
START_SECONDS_MAX = 15
# A healthy server answers within this time, also on a machine that builds something else meanwhile.
HEALTH_SECONDS_MAX = 3

MIB = 1 << 20
# The process may hold this much beyond its budget: code, stacks, the allocator's overhead.
SLACK_BYTES = 64 * MIB

# An answer may take this many times as long as promised. 1 is for a machine that does nothing else.
SLACK = float(os.environ.get("ATTACK_SLACK", "1"))


# The exit status of a server whose drain had to cut connections off.
CUT_OFF_STATUS = 3


class Failed(Exception):
    """A case saw something other than it expects."""


class Skipped(Exception):
    """This machine does not permit what a case needs."""


class Refused(Failed):
    """The server did not start. Holds its exit status, and its standard error."""

    def __init__(self, status, output):
        super().__init__(f"the server does not start (status {status}): {first_line(output)}")
        self.status, self.output = status, output


def expect(condition, saw):
    """Fails the case with `saw` unless the condition holds."""
    if not condition:
        raise Failed(str(saw))


def first_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[0] if lines else "nothing"


class Server:
    """A server that runs, from `start` to `stop`."""

    def __init__(self, setup, options=(), listeners=("http",), core=None, log=None, launcher=()):
        """Starts the server. `log` is a file or a descriptor for its standard error; by default a new file.
        `launcher` is a command that becomes the command behind it."""
        command = [*launcher, str(setup.binary), "--runtime", setup.runtime]
        if not any(option == "--workers" for option in options):
            command += ["--workers", "1"]
        for name in listeners:
            command += [f"--{name}", "127.0.0.1:0"]
        if any(name in OVER_TLS for name in listeners):
            if "--tls-cert" not in options:
                command += ["--tls-cert", str(setup.cert), "--tls-key", str(setup.key)]
        self.command = command + [str(option) for option in options]
        self.log_path = None
        if log is None:
            descriptor, self.log_path = tempfile.mkstemp(dir=setup.dir, suffix=".log")
            log = descriptor
        with running_on(core):
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        if self.log_path:
            os.close(log)
        self.pid = self.process.pid
        self.addrs = {}
        self.setup = setup
        try:
            self._read_addrs(len(listeners))
        except BaseException:
            self.kill()
            raise

    def _read_addrs(self, count):
        out, output = self.process.stdout, b""
        os.set_blocking(out.fileno(), False)
        deadline = time.monotonic() + START_SECONDS_MAX
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while output.count(b"\n") < count:
                if time.monotonic() > deadline:
                    raise Failed("the server does not listen in time")
                if not selector.select(0.2):
                    continue
                part = out.read()
                if part == b"":
                    status = self.process.wait(START_SECONDS_MAX)
                    raise Refused(status, self.log())
                output += part or b""
        for line in output.decode().splitlines():
            name, addr = re.fullmatch(r"listening (\S+) (\S+)", line).groups()
            host, port = addr.rsplit(":", 1)
            self.addrs[name] = (host.strip("[]"), int(port))

    def addr(self, name="http"):
        return self.addrs[name]

    def log(self):
        """What it has logged so far. Empty if the caller chose where the log goes."""
        if self.log_path is None:
            return ""
        return Path(self.log_path).read_text(errors="replace")

    def is_alive(self):
        return self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def ended(self, seconds):
        """Its exit status if it ends within `seconds`, or None."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self):
        """Ends it in whatever way works. Cases about the end do not use this."""
        if self.is_alive():
            self.signal(signal.SIGTERM)
            if self.ended(0.3) is None:
                self.signal(signal.SIGTERM)  # the second ends at once
                if self.ended(0.5) is None:
                    self.kill()
        self.process.stdout.close()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def _status_kib(self, field):
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+) kB", text, re.M).group(1))

    def peak_bytes(self):
        return self._status_kib("VmHWM") * 1024

    def address_space_bytes(self):
        return self._status_kib("VmSize") * 1024

    def processor_seconds(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def limit(self, what, value):
        """Sets a resource limit of the running process."""
        resource.prlimit(self.pid, what, (value, resource.prlimit(self.pid, what)[1]))

    def health(self, seconds_max=HEALTH_SECONDS_MAX, listener="http"):
        """Returns how many seconds /health takes. Fails unless it is answered with 200 in time."""
        begun = time.monotonic()
        try:
            with connect(self.addr(listener), seconds_max) as sock:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: attack\r\nConnection: close\r\n\r\n")
                answer = read_to_end(sock, seconds_max)
        except OSError as error:
            raise Failed(f"/health: {error!r} after {time.monotonic() - begun:.1f} s") from error
        expect(answer.startswith(b"HTTP/1.1 200 "), f"/health: {answer[:60]!r}")
        return time.monotonic() - begun

    def check(self, where="afterwards"):
        """Fails unless the server runs, is healthy, and has logged no panic."""
        expect(
            self.is_alive(),
            f"the server has ended with {self.process.returncode} {where}: " f"{last_lines(self.log())}",
        )
        if "http" in self.addrs:
            self.health()
        expect("panicked" not in self.log(), f"a panic is logged {where}: {last_lines(self.log())}")


def last_lines(text):
    return " / ".join(text.strip().splitlines()[-2:])


@contextmanager
def small_disk(directory, size_bytes):
    """Mounts a tmpfs of this size on the directory. Yields a launcher for programs that see it, and the path by which
    this program sees it.

    It is in a mount namespace of its own, which ends with the last process in it: nothing stays mounted, however this
    program ends. That needs root, or user namespaces.
    """
    mount = 'mount -t tmpfs -o "size=$1" none "$2" && echo mounted && exec cat'
    refusals = []
    for how in (["--mount"], ["--user", "--map-root-user", "--mount"]):
        holder = subprocess.Popen(
            ["unshare", *how, "sh", "-c", mount, "sh", str(size_bytes), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with holder:  # ends its standard input, and waits for it
            if holder.stdout.readline() != b"mounted\n":
                refusals.append(first_line(holder.stderr.read().decode()))
                continue
            entered = [f"--{kind}=/proc/{holder.pid}/ns/{file}" for kind, file in (("user", "user"), ("mount", "mnt"))]
            if "--user" in how:
                launcher = ["nsenter", "--preserve-credentials", *entered]
            else:
                launcher = ["nsenter", entered[1]]
            yield launcher, Path(f"/proc/{holder.pid}/root{directory}")
            return
    raise Skipped("no tmpfs can be mounted: " + "; ".join(refusals))


@contextmanager
def running_on(core):
    """Runs this thread, and the processes that it starts, on one core. Changes nothing if there is only one."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    if core is not None and len(cores) > 1:
        os.sched_setaffinity(0, {cores[core]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def connect(addr, seconds_max=5, source=None, receive_bytes=None):
    """A connection. Each operation on it fails after `seconds_max`."""
    sock = socket.socket()
    try:
        sock.settimeout(seconds_max)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        if source:
            sock.bind((source, 0))
        sock.connect(addr)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def read_to_end(sock, seconds_max=5, bytes_max=4 * MIB):
    """Reads until the end of the stream; a reset is an end too. Fails if the end does not come in time."""
    deadline = time.monotonic() + seconds_max
    received = bytearray()
    while len(received) < bytes_max:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            part = sock.recv(65536)
        except TimeoutError:
            raise Failed(f"no end of the stream within {seconds_max} s; until then {bytes(received[:60])!r}")
        except ConnectionError:
            break
        if not part:
            break
        received += part
    return bytes(received)


def ask_for_health(sock):
    """Asks for /health on a connection that stays, and reads the answer."""
    sock.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\nok\n"):
        part = sock.recv(4096)
        expect(part, f"an end after {answer!r}")
        answer += part


def seconds_to_end(sock, seconds_max):
    """Reads until the end of the stream. Returns how many seconds that took."""
    begun = time.monotonic()
    read_to_end(sock, seconds_max, bytes_max=1 << 40)
    return time.monotonic() - begun


def reset(sock):
    """Closes the connection by RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()


def tcp_table():
    """The kernel's TCP sockets over IPv4: (local port, remote port, state, bytes to send, timer)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(addr.split(":")[1], 16) for addr in fields[1:3])
        yield (
            local,
            remote,
            int(fields[3], 16),
            int(fields[4].split(":")[0], 16),
            int(fields[5].split(":")[0], 16),
        )
