"""Runs other WebSocket clients, which exchange compressed messages with the server. See README.md."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "interop"

RUNTIMES = ["tokio", "tokio-uring", "compio", "monoio", "glommio"]
DEFLATE_MODES = ["shared", "takeover"]

START_SECONDS_MAX = 30
CLIENT_SECONDS_MAX = 300

# The exit status if a client needs something that is not installed.
MISSING = 77


class Failure(Exception):
    status = 1


class Missing(Failure):
    status = MISSING


def main():
    options = parse_options()
    WORK.mkdir(parents=True, exist_ok=True)
    run(["cargo", "build-server"], cwd=ROOT)
    clients = {name: CLIENTS[name]() for name in options.clients}
    for runtime in options.runtime:
        for deflate in DEFLATE_MODES:
            with server(runtime, deflate) as addr:
                for name, command in clients.items():
                    output = run(command + [f"ws://{addr}/echo", deflate], capture_output=True, text=True)
                    print(f"{name}, {runtime}, --deflate {deflate}: {output.strip()}", flush=True)


def parse_options():
    parser = argparse.ArgumentParser(prog="websocket/interop/run", description=__doc__)
    parser.add_argument("clients", nargs="+", metavar="client", choices=list(CLIENTS),
                        help=", ".join(CLIENTS))
    parser.add_argument("--runtime", action="append", choices=RUNTIMES, help="default tokio")
    options = parser.parse_args()
    options.runtime = options.runtime or ["tokio"]
    return options


def make_python():
    venv, requirements = WORK / "venv", HERE / "requirements.txt"
    installed = venv / requirements.name
    if not (installed.exists() and installed.read_text() == requirements.read_text()):
        shutil.rmtree(venv, ignore_errors=True)
        run([sys.executable, "-m", "venv", venv])
        pip = [venv / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run(pip + ["install", "-r", requirements])
        shutil.copy(requirements, installed)
    return [venv / "bin/python", HERE / "python.py"]


def make_gws():
    if not shutil.which("go"):
        raise Missing("gws needs Go")
    run(["go", "build", "-o", WORK / "gws", "."], cwd=HERE / "gws")
    return [WORK / "gws"]


def make_chromium():
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not (chromium and shutil.which("npm")):
        raise Missing("chromium needs Node.js and Chromium; CHROMIUM=PATH names the program")
    modules = WORK / "chromium"
    modules.mkdir(exist_ok=True)
    for file in (HERE / "chromium").iterdir():
        shutil.copy(file, modules)
    run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=modules)
    return ["node", modules / "main.mjs", chromium]


CLIENTS = {"python": make_python, "gws": make_gws, "chromium": make_chromium}


@contextmanager
def server(runtime, deflate):
    """Runs the server and yields its address. Asserts after the block that the server ends with status 0."""
    command = [TARGET / "debug/owned-io-server", "--http", "127.0.0.1:0", "--workers", "1"]
    command += ["--runtime", runtime, "--deflate", deflate]
    output = WORK / "server.out"
    with open(output, "wb") as out, open(WORK / "server.err", "wb") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors)
    try:
        yield wait_for_address(process, output)
        process.terminate()
        if process.wait(START_SECONDS_MAX) != 0:
            raise Failure(f"the server failed at its end: {(WORK / 'server.err').read_text()}")
    finally:
        process.kill()
        process.wait()


def wait_for_address(process, output):
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        line = output.read_text()
        if line.startswith("listening http ") and line.endswith("\n"):
            return line.split()[2]
        time.sleep(0.02)
    raise Failure("the server does not start, or prints no address")


def run(command, **options):
    finished = subprocess.run(command, timeout=CLIENT_SECONDS_MAX * 4, **options)
    if finished.returncode != 0:
        output = f": {finished.stdout}{finished.stderr}" if finished.stderr else ""
        raise Failure(f"{' '.join(map(str, command))}: failed{output}")
    return finished.stdout


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        print(f"websocket/interop/run: {failure}", file=sys.stderr)
        sys.exit(failure.status)
