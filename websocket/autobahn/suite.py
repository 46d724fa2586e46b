"""Runs the Autobahn test suite on a WebSocket engine, as a server and as a client, and compares the result of each
case with the expected one. See README.md."""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "autobahn"
EXPECTED = {"native": HERE / "expected.json", "tungstenite": HERE / "expected-tungstenite.json"}

ENGINES = ["native", "tungstenite-fixed", "tungstenite-linear", "tungstenite-exponential"]
RUNTIMES = ["tokio", "tokio-uring", "compio", "monoio", "glommio"]
COMPRESSION = ["12.*", "13.*"]
LARGE = ["9.*"]

# The fields that are compared, and the allowed values of the first two, also in expected results. tungstenite checks
# text when a frame is complete, which the suite accepts but calls NON-STRICT.
FIELDS = ["behavior", "behaviorClose", "remoteCloseCode"]
GOOD = {"native": ["OK", "INFORMATIONAL"], "tungstenite": ["OK", "INFORMATIONAL", "NON-STRICT"]}

RUN_SECONDS_MAX = 1800
START_SECONDS_MAX = 30


# The exit status without Python 2.7.
NO_PYTHON_2_7 = 77


class Cases:
    """The groups of cases to run, and the groups of those to leave out."""

    def __init__(self, run, left_out):
        self.run, self.left_out = run, left_out

    def has(self, case):
        return matches(case, self.run) and not matches(case, self.left_out)


class Failure(Exception):
    """Why the cases could not be run."""

    status = 1


class NoPython(Failure):
    status = NO_PYTHON_2_7


def main():
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of `finally`
    runner = options.runner()
    build(options.release)
    profile = TARGET / ("release" if options.release else "debug")
    if options.deflate == "off":
        cases = Cases(["*"], COMPRESSION + ([] if options.all else LARGE))
    else:
        cases = Cases(COMPRESSION, [])
    engine = options.engine
    kind = engine.split("-")[0]  # of the three over tungstenite, the same is expected
    differences = 0
    for runtime in options.runtimes:
        what = f"{options.role}-{runtime}-{engine}-{runner.name}"
        what += f"-{options.deflate}" if options.deflate != "off" else ""
        out = WORK / what
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        start = time.monotonic()
        test = test_server if options.role == "server" else test_client
        test(runner, profile, runtime, engine, options.deflate, cases, out)
        results = read_results(out)
        seconds = time.monotonic() - start
        if options.accept:
            accept(results, kind)
        found = compare(results, read_expected(cases, kind), kind)
        for difference in found:
            print(f"{what}: {difference}")
        verdict = f"{len(found)} cases differ" if found else "as expected"
        print(f"{what}: {len(results)} cases in {seconds:.0f} s: {verdict}", flush=True)
        differences += len(found)
    return 1 if differences else 0


def parse_options():
    parser = argparse.ArgumentParser(prog="websocket/autobahn/run", description=__doc__)
    parser.add_argument("role", choices=["server", "client"], help="what we are")
    parser.add_argument("runtimes", nargs="+", metavar="runtime", choices=RUNTIMES,
                        help=", ".join(RUNTIMES))
    parser.add_argument("--engine", choices=ENGINES, default="native", metavar="engine",
                        help=f"{', '.join(ENGINES)}; default native")
    parser.add_argument("--all", action="store_true", help="with the large messages, 9.*")
    parser.add_argument("--deflate", choices=["off", "shared", "takeover"], default="off",
                        help="compression, 12.* and 13.* alone, in one way or the other")
    parser.add_argument("--release", action="store_true", help="an optimised build")
    parser.add_argument("--runner", type={"kosoku": Kosoku, "wstest": Wstest}.get, default=Kosoku,
                        metavar="kosoku|wstest", help="who runs the cases; default kosoku")
    parser.add_argument("--accept", action="store_true",
                        help="with --all or --deflate: write the cases that were run into what is "
                             "expected, if every one is good")
    options = parser.parse_args()
    if options.deflate != "off" and options.engine != "native":
        parser.error("--deflate needs the native engine: tungstenite compresses nothing")
    if options.runner is None:
        parser.error("--runner is kosoku or wstest")
    if options.accept and not (options.all or options.deflate != "off"):
        parser.error("--accept needs --all or --deflate")
    return options


def build(release):
    profile = ["--release"] if release else []
    run(["cargo", "build-server", *profile], cwd=ROOT)
    run(["cargo", "build", "-p", "owned-io-autobahn", *profile], cwd=ROOT)


def test_server(runner, profile, runtime, engine, deflate, cases, out):
    """Our server, with the suite as the client."""
    command = [profile / "owned-io-server", "--http", "127.0.0.1:0", "--runtime", runtime]
    command += ["--workers", "1", "--engine", engine, "--deflate", deflate]
    with running(command, out, "server") as server:
        addr = wait_for(server, lambda: found(out / "server.out", "listening http "))
        runner.run_client(f"ws://{addr}/echo", cases, out)
        server.terminate()
        if server.wait(START_SECONDS_MAX) != 0:
            raise Failure(f"the server ended badly: {tail(server.stderr_path)}")


def test_client(runner, profile, runtime, engine, deflate, cases, out):
    """Our client, with the suite as the server."""
    with runner.server(cases, out) as (server, addr):
        agent = f"owned-io-{runtime}"
        command = [profile / "owned-io-autobahn", runtime, engine, addr, agent, deflate]
        with running(command, out, "client") as client:
            if client.wait(RUN_SECONDS_MAX) != 0:
                raise Failure(f"the client ended badly: {tail(client.stderr_path)}")
        runner.end_server(server)


class Kosoku:
    """A fast reimplementation of the suite."""

    name = "kosoku"

    def __init__(self):
        python = make_venv("kosoku", lambda venv: run([sys.executable, "-m", "venv", venv]), patch_kosoku)
        self.command = [python.parent / "kosoku"]

    def run_client(self, url, cases, out):
        command = self.command + ["-m", "fuzzingclient", "-p", "2", *self.options(cases, out)]
        with running(command + [url], out, "runner") as client:
            client.wait(RUN_SECONDS_MAX)  # exits with 1 if a result is not what kosoku itself expects

    @contextmanager
    def server(self, cases, out):
        command = self.command + ["-m", "fuzzingserver", *self.options(cases, out)]
        with running(command + ["127.0.0.1:0"], out, "runner") as server:
            yield server, wait_for(server, lambda: found(out / "runner.err", "ws://"))

    def end_server(self, server):
        server.wait(START_SECONDS_MAX)  # it has written the reports, and ends by itself

    def options(self, cases, out):
        run = [option for glob in cases.run for option in ("-i", glob)]
        left_out = [option for glob in cases.left_out for option in ("-x", glob)]
        return run + left_out + ["-o", out]


class Wstest:
    """The original suite, which needs Python 2.7."""

    name = "wstest"

    def __init__(self):
        def make(venv):
            old = find_python_2_7()
            tool = make_venv("virtualenv", lambda venv: run([sys.executable, "-m", "venv", venv]))
            run([tool, "-m", "virtualenv", "--quiet", "--python", old, venv])

        self.command = [make_venv("wstest", make).parent / "wstest"]

    def run_client(self, url, cases, out):
        spec = {"servers": [{"agent": "owned-io", "url": url}]}
        command = self.command + ["-m", "fuzzingclient", "-s", self.write(spec, cases, out)]
        with running(command, out, "runner") as client:
            if client.wait(RUN_SECONDS_MAX) != 0:
                raise Failure(f"wstest ended badly: {tail(client.stderr_path)}")

    @contextmanager
    def server(self, cases, out):
        addr = ("127.0.0.1", free_port())
        url = "ws://{}:{}".format(*addr)
        spec = self.write({"url": url}, cases, out)
        command = self.command + ["-m", "fuzzingserver", "-u", "0", "-s", spec]
        with running(command, out, "runner") as server:
            wait_for(server, lambda: is_listening(addr))
            yield server, url.removeprefix("ws://")

    def end_server(self, server):
        server.terminate()

    def write(self, spec, cases, out):
        path = out / "spec.json"
        spec = {"outdir": str(out), "cases": cases.run, "exclude-cases": cases.left_out, **spec}
        path.write_text(json.dumps({"exclude-agent-cases": {}, **spec}))
        return path


def read_results(out):
    try:
        agents = json.loads((out / "index.json").read_text())
    except FileNotFoundError:
        raise Failure(f"there are no results: {tail(out / 'runner.err')}")
    if len(agents) != 1:
        raise Failure(f"there are results of {len(agents)} agents: see {out}")
    results, = agents.values()
    for result in results.values():
        result["reportfile"] = out / result["reportfile"]
    return results


def read_expected(cases, kind):
    expected = json.loads(EXPECTED[kind].read_text())
    return {case: result for case, result in expected.items() if cases.has(case)}


def compare(results, expected, kind):
    """The differences from the expected results, by case."""
    differences = []
    for case in sorted(results.keys() | expected.keys(), key=by_number):
        if case not in results:
            differences.append(f"{case} was not run")
        elif case not in expected:
            differences.append(f"{case} is not in {EXPECTED[kind].name}")
        else:
            got, wanted = outcome(results[case]), outcome(expected[case])
            report = results[case]["reportfile"]
            if got != wanted:
                differences.append(f"{case} is {got}, and should be {wanted}: see {report}")
            elif not is_good(results[case], kind):
                differences.append(f"{case} is {got}, which is not good: see {report}")
    return differences


def accept(results, kind):
    path = EXPECTED[kind]
    bad = [case for case in results if not is_good(results[case], kind)]
    if bad:
        raise Failure(f"{path.name} stays as it is: not good are {', '.join(bad)}")
    expected = json.loads(path.read_text()) | results
    lines = [f'"{case}": {json.dumps({field: expected[case][field] for field in FIELDS})}'
             for case in sorted(expected, key=by_number)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def is_good(result, kind):
    return result["behavior"] in GOOD[kind] and result["behaviorClose"] in GOOD[kind]


def outcome(result):
    return ", ".join(str(result[field]) for field in FIELDS)


def matches(case, groups):
    return any(case.startswith(group.removesuffix("*")) for group in groups)


def by_number(case):
    return [int(part) for part in case.split(".")]


def patch_kosoku(venv):
    """With compression, kosoku 0.1.0 expects every message as bytes, but has an uncompressed one as a string, in which
    each byte of a binary message is a character."""
    script, = venv.glob("lib/python3*/site-packages/kosoku/cases/case12_x_x.py")
    head = "def onMessage(self, msg, binary):\n"
    text = script.read_text()
    if text.count(head) != 1:
        raise Failure(f"{script} is not what it was")
    encoding = '"latin-1" if binary else "utf-8"'
    patch = f"   if isinstance(msg, str): msg = msg.encode({encoding})\n"
    script.write_text(text.replace(head, head + patch))


def make_venv(name, make, patch=lambda venv: None):
    """A virtual environment with the packages of requirements-NAME.txt; returns its Python."""
    venv, requirements = WORK / f"venv-{name}", HERE / f"requirements-{name}.txt"
    done = venv / requirements.name
    if not (done.exists() and done.read_text() == requirements.read_text()):
        shutil.rmtree(venv, ignore_errors=True)
        make(venv)
        pip = [venv / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run(pip + ["install", "-r", requirements])
        patch(venv)
        shutil.copy(requirements, done)
    return venv / "bin/python"


def find_python_2_7():
    """$PYTHON27, python2.7, or a version of pyenv. The one in the path may be a shim that does not work."""
    candidates = [os.environ.get("PYTHON27"), shutil.which("python2.7")]
    candidates += sorted(Path.home().glob(".pyenv/versions/2.7.*/bin/python2.7"))
    for python in filter(None, candidates):
        if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    raise NoPython("wstest needs Python 2.7: set PYTHON27 to its path")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def is_listening(addr):
    with socket.socket() as client:
        return True if client.connect_ex(addr) == 0 else None


@contextmanager
def running(command, out, name):
    """A process that ends with the block. Its output is in files of this name."""
    with open(out / f"{name}.out", "wb") as stdout, open(out / f"{name}.err", "wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    process.stderr_path = out / f"{name}.err"
    try:
        yield process
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{late.cmd[0]} is not done after {late.timeout} s: see {out}") from late
    finally:
        process.kill()
        process.wait()


def wait_for(process, attempt):
    """Calls `attempt` until it returns something, and returns that."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if (result := attempt()) is not None:
            return result
        time.sleep(0.02)
    raise Failure(f"{process.args[0]} does not start, or prints no address: {tail(process.stderr_path)}")


def found(path, before):
    """The rest of the line behind `before`."""
    for line in path.read_text().splitlines(keepends=True):
        if before in line and line.endswith("\n"):
            return line.split(before)[1].strip()
    return None


def tail(path):
    return path.read_text(errors="replace")[-2000:].strip()


def run(command, **options):
    if subprocess.run(command, **options).returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: failed")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"websocket/autobahn/run: {failure}", file=sys.stderr)
        sys.exit(failure.status)
