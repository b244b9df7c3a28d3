"""A plug-in for pytest that runs a suite with every batch taken by lapwing: LAPWING_DOOR names the door."""

from __future__ import annotations

import os


def pytest_configure(config):
    import lapwing as lw
    from lapwing.doors.ahead import AHEAD, Cells

    for row in AHEAD:
        AHEAD[row] = Cells(10**6, int(os.environ["LAPWING_LEAST"]))
    config.lapwing_handle = lw.install(os.environ["LAPWING_DOOR"])


def pytest_unconfigure(config):
    taken = sum(calls["lapwing"] for calls in config.lapwing_handle.report().values())
    config.lapwing_handle.undo()
    print(f"\ntaken by lapwing: {taken}")
