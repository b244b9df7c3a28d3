"""A plug-in for pytest that runs a suite with every call taken by lapwing that the doors know: LAPWING_DOOR names them."""

from __future__ import annotations

import os


def pytest_configure(config):
    import lapwing as lw
    from lapwing.doors.cells import AHEAD, Cell

    doors = os.environ["LAPWING_DOOR"].split(",")
    rows = set(AHEAD)
    if "torch" in doors:
        from lapwing.doors.torch import OPERATIONS

        rows |= {(operation, device) for operation in OPERATIONS for device in ("cpu", "cuda")}
    for row in rows:
        AHEAD[row] = (Cell(10**6, int(os.environ["LAPWING_LEAST"]), 1.0),)
    config.lapwing_handle = lw.install(*doors)


def pytest_unconfigure(config):
    report = config.lapwing_handle.report()
    config.lapwing_handle.undo()
    print(f"\naccepted by lapwing: {sum(calls['lapwing'] for calls in report.values())}")
