"""The broker of server/kafka/broker, for tests and measurements in Python."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().with_name("broker")
# Packages of Debian and the broker, over a slow network.
FETCH_SECONDS_MAX = 900
START_SECONDS_MAX = 60


def prepare(directory):
    """Fetches what a broker needs, and removes the data and the logs of the last run."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([SCRIPT, "--fetch", directory], check=True, timeout=FETCH_SECONDS_MAX)
    remove_data(directory)
    for log in directory.glob("*.log"):
        log.unlink()


def remove_data(directory):
    shutil.rmtree(directory / "data", ignore_errors=True)


class Broker:
    """A broker, which keeps its data when it is started again."""

    def __init__(self, directory):
        self.directory, self.process = directory, None
        self.port, self.controller_port = free_ports(2)

    def start(self):
        command = [SCRIPT, self.directory, str(self.port), str(self.controller_port)]
        with open(self.directory / "broker.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS_MAX
        while not self._listens():
            if self.process.poll() is not None:
                self._fail("has ended")
            if time.monotonic() > until:
                self._fail(f"does not listen within {START_SECONDS_MAX} s")
            time.sleep(0.05)

    def _listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def _fail(self, what):
        sys.exit(f"{sys.argv[0]}: the broker {what}: see {self.directory}/broker.log")

    def end(self, seconds_max):
        self.process.terminate()
        try:
            self.process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def create_topic(self, topic, partitions):
        self._tool("TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions))

    def counts(self, topic):
        """How many records each partition of the topic has."""
        lines = self._tool("GetOffsetShell", "--topic", topic).split()
        return [int(line.rsplit(":", 1)[1]) for line in sorted(lines)]

    def _tool(self, name, *options):
        """What a tool of Kafka prints."""
        command = ["java", "-cp", f"{self.directory}/lib/*", f"org.apache.kafka.tools.{name}"]
        command += ["--bootstrap-server", f"127.0.0.1:{self.port}", *options]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
