"""The tables of a record: how long victims wait during floods, and how much memory attacks make a worker hold."""

import subprocess
from pathlib import Path

import fairness
import memory
from harness import MIB, Failed
from neighbours import KINDS

SECONDS = 3


def print_tables(setup, is_chosen):
    """Prints both tables for a runtime as Markdown, with the rows whose title is chosen."""
    print(f"\n### {setup.runtime}\n")
    print("| 50 neighbours | victim p50, ms | p99, ms | /health, ms | drain, s | status |")
    print("|---|---|---|---|---|---|")
    for name, kind in ((name, kind) for name, kind in KINDS.items() if is_chosen(kind.title)):
        print(f"| {kind.title} | {waits(setup, name)} |", flush=True)
    has_option = "--memory-max" in help_of(setup.binary)
    budget = f"--memory-max {memory.BUDGET_BYTES // MIB} MiB" if has_option else "no --memory-max"
    print(f"\n| attack, {budget} | peak, MiB | meanwhile |")
    print("|---|---|---|")
    for name in filter(is_chosen, memory.ATTACKS):
        print(f"| {name} | {peak(setup, name, has_option)} |", flush=True)


def waits(setup, name):
    try:
        wait = fairness.measure(setup, name, 50, SECONDS)
    except (Failed, OSError) as error:
        return f"{error} | | | |"
    status = "killed" if wait.status is None else wait.status
    return (
        f"{wait.p50 * 1e3:.2f} | {wait.p99 * 1e3:.2f} | {wait.health * 1e3:.1f} | "
        f"{wait.drain:.2f} | {status}"
    )


def peak(setup, name, has_option):
    try:
        seen = memory.measure(setup, name, memory_option=has_option)
    except (Failed, OSError) as error:
        return f"{error} |"
    return f"{seen.peak_bytes / MIB:.0f} | {seen.neighbour or 'served'}"


def help_of(binary: Path):
    return subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout
