"""The table of all cases, and what a case is given."""

import importlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from harness import PLAIN, Failed, Server

CASES = []


@dataclass(frozen=True)
class Case:
    name: str
    # For the line that reports its failure.
    expects: str
    run: Callable
    # `quick` cases share a server and run one after the other. `waiting` cases mostly wait: they run all at once,
    # with servers of their own. `alone` cases measure: nothing else runs meanwhile.
    kind: str


def case(name, expects, kind="quick"):
    """Adds the function below it as a case."""

    def add(function):
        add_case(name, expects, function, kind)
        return function

    return add


def add_case(name, expects, function, kind="quick"):
    assert name not in {known.name for known in CASES}, f"two cases are called {name}"
    CASES.append(Case(name, expects, function, kind))


def load():
    """All cases, in the order of their files."""
    if not CASES:
        for file in sorted((Path(__file__).parent / "cases").glob("[a-z]*.py")):
            importlib.import_module(f"cases.{file.stem}")
    return CASES


class Context:
    """What a case is given: the setup, and servers."""

    def __init__(self, setup):
        self.setup = setup
        self.shared = {}

    @property
    def runtime(self):
        return self.setup.runtime

    @property
    def tls(self):
        """The context of a TLS client that trusts the servers' certificate."""
        return self.setup.tls

    def server(self, *options, listeners=PLAIN):
        """A server with these options, shared with other cases."""
        key = (options, listeners)
        known = self.shared.get(key)
        if known is None or not known.is_alive():
            if known is not None:
                known.stop()
            self.shared[key] = known = Server(self.setup, options, listeners)
        return known

    @contextmanager
    def fresh(self, *options, listeners=("http",), log=None):
        """A server for this case alone."""
        server = Server(self.setup, options, listeners, log=log)
        try:
            yield server
        finally:
            server.stop()

    def check(self):
        """Fails unless all shared servers are healthy. An unhealthy server is stopped and not used again."""
        failure = None
        for key, server in list(self.shared.items()):
            try:
                server.check()
            except Failed as error:
                failure = error
                server.stop()
                del self.shared[key]
        if failure:
            raise failure

    def stop(self):
        for server in self.shared.values():
            server.stop()
        self.shared.clear()
