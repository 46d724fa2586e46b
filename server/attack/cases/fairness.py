"""No connection owns the worker: a victim while 50 neighbours flood, for each kind of flood."""

from fairness import DRAIN_SECONDS, measure
from harness import CUT_OFF_STATUS, SLACK, expect
from neighbours import KINDS
from registry import add_case

NEIGHBOURS = 50
SECONDS = 1.5
P50_SECONDS_MAX, P99_SECONDS_MAX, HEALTH_SECONDS_MAX = 0.010, 0.040, 0.050
# The input of the neighbours may take longer than the drain. They are cut off then, which is no failure.
DRAINED = (0, CUT_OFF_STATUS)


def fair(name):
    def run(ctx):
        wait = measure(ctx.setup, name, NEIGHBOURS, SECONDS)
        saw = (
            f"p50 {wait.p50 * 1e3:.1f} ms, p99 {wait.p99 * 1e3:.1f} ms of {wait.echoes}, "
            f"/health {wait.health * 1e3:.0f} ms, drained in {wait.drain:.1f} s, status {wait.status}"
        )
        expect(wait.p50 <= SLACK * P50_SECONDS_MAX, saw)
        expect(wait.p99 <= SLACK * P99_SECONDS_MAX, saw)
        expect(wait.health <= SLACK * HEALTH_SECONDS_MAX, saw)
        expect(wait.drain < DRAIN_SECONDS + SLACK, saw)
        expect(wait.status in DRAINED, saw)
        expect("stuck" not in wait.log, wait.log[-200:])

    add_case(
        f"fairness: 50 neighbours: {KINDS[name].title}",
        "a victim with p50 <= 10 ms and p99 <= 40 ms, /health in 50 ms, a drain in time",
        run,
        "alone",
    )


for name in KINDS:
    fair(name)
