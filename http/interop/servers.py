"""The servers that requests are sent to: owned-io-server and nginx, each a child that is ended after its use."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "server/attack"))

from harness import RUNTIMES, Server  # noqa: E402
from iggy import OK, PASSWORD, USER, Client, by_name, create_stream, create_topic, options  # noqa: E402, F401

# The stream and the topic that events are posted to.
TOPIC = "table"
START_SECONDS_MAX = 15


def parse_runtimes(parser, words):
    if not words:
        parser.error("which runtime?")
    if unknown := set(words) - set(RUNTIMES):
        parser.error(f"{min(unknown)} is not a runtime; there are {', '.join(RUNTIMES)}")


def build():
    subprocess.run(["cargo", "build-server"], cwd=ROOT, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "debug/owned-io-server"


@contextmanager
def owned_io(binary, runtime, objects, *more):
    """Runs the server on a runtime, with the directory `objects` as the origin, and a topic for events. Yields its
    address. Fails if it does not end as it is asked to, or has logged a panic."""
    with tempfile.TemporaryDirectory(prefix="http-interop-") as directory:
        setup = SimpleNamespace(binary=binary, runtime=runtime, dir=directory)
        flags = [*options(setup), "--origin", objects, *more]
        server = Server(setup, flags, listeners=("http", "tcp"))
        try:
            with Client(server.addr("tcp")) as client:
                client.ask(create_stream(TOPIC), OK)
                client.ask(create_topic(by_name(TOPIC), TOPIC), OK)
            yield server.addr()
            server.check()
            server.process.terminate()
            if server.ended(START_SECONDS_MAX) != 0:
                raise SystemExit(f"the server failed at its end: {server.log()}")
        finally:
            server.stop()


def find_nginx():
    """The path of nginx: $NGINX_PROGRAM, in the path of programs, or where Debian has it. None: it is missing."""
    return os.environ.get("NGINX_PROGRAM") or shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")


def nginx_version(program):
    answer = subprocess.run([program, "-v"], capture_output=True, text=True, check=True)
    return answer.stderr.strip().rpartition("nginx/")[2].split()[0]


# The second server answers what the first passes on, so that the first has to read the bodies of requests. Limits are
# the defaults. nginx takes the end of what a client sends for its leaving, and gives up what it has passed on, unless
# it is told not to. One process, so that ending it ends all of nginx.
NGINX_CONF = """\
daemon off;
master_process off;
pid {dir}/nginx.pid;
error_log {dir}/error.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {dir}/client;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://unix:{dir}/behind.sock;
            proxy_ignore_client_abort on;
        }}
        location /object/ {{ alias {objects}/; }}
    }}
    server {{
        listen unix:{dir}/behind.sock;
        location / {{ return 404; }}
        location = / {{ return 200 "ok\\n"; }}
        location = /health {{ return 200 "ok\\n"; }}
    }}
}}
"""


@contextmanager
def nginx(program, objects):
    """Runs nginx on a free port of the loopback. Yields its address."""
    with tempfile.TemporaryDirectory(prefix="http-nginx-") as directory:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = free.getsockname()
        conf = Path(directory) / "nginx.conf"
        conf.write_text(NGINX_CONF.format(dir=directory, port=address[1], objects=objects))
        command = [program, "-p", directory, "-e", f"{directory}/error.log", "-c", conf]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            wait_until_it_listens(process, address, Path(directory) / "error.log")
            yield address
        finally:
            process.terminate()
            process.wait()


def wait_until_it_listens(process, address, log):
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(address, 1).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise SystemExit(f"nginx does not listen: {log.read_text() if log.exists() else 'no log'}")
