"""A bridge for tests of the C library alone (LAPWING_INSITU_BRIDGE=recording_bridge): it prints the calls it receives.

It needs no NumPy, so that any interpreter can run it. The name of the script selects how it misbehaves.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from time import sleep
from typing import Any

VERBOSE = not os.environ.get("RECORDING_QUIET")


def report(what: str, **details: Any) -> None:
    if VERBOSE:
        print("bridge", what, json.dumps(details, default=str), flush=True)


class Session:
    def __init__(self, script: str) -> None:
        self.script = script
        self.traceback = ""
        self.running = 0

    def field(self, name: str, pointer: int, *rest: Any) -> int:
        if self.script == "raise in field":
            raise ValueError(f"bad field {name}")
        report("field", name=name, null=pointer == 0, rest=rest)
        return 0

    def dlpack(self, name: str, capsule: Any) -> int:
        if self.script == "raise in dlpack":
            raise ValueError(f"bad tensor {name}")
        report("dlpack", name=name, capsule=repr(capsule).split('"')[1])
        return 0

    def mesh(self, spec: dict[str, Any]) -> int:
        report("mesh", **spec)
        return 0

    def step(self, step: int, time: float) -> Any:
        if self.script == "raise in step":
            raise RuntimeError(f"broken at {step}")
        if self.script == "exit in step":
            sys.exit(7)
        if self.script == "no status":
            return "fine"
        if self.script == "strange status":
            return 17
        if self.script == "slow":
            self.running += 1
            sleep(0.005)  # lets other threads in
            self.running -= 1
            return 0
        if self.script == "divide":
            assert float("1e308") * 10 == float("inf")
            sys.stderr.flush()
        if self.script == "signals" and step < 2:
            for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        report("step", step=step, time=time)
        return 2 if self.script == "stop at 3" and step == 3 else 0

    def checkpoint(self, path: str) -> int:
        report("checkpoint", path=path)
        return 0

    def restore(self, path: str) -> int:
        report("restore", path=path)
        return 1

    def finalize(self) -> int:
        report("finalize", **({"running": self.running} if self.script == "slow" else {}))
        if self.script == "slow":
            sleep(0.05)
        return 0

    def error(self) -> str:
        return self.traceback


def start(script: str, options: str, comm: int) -> Session:
    if script == "raise in start":
        raise OSError("no such analysis")
    if script == "exit in start":
        sys.exit(5)
    report("start", script=script, options=options, comm=comm, prefix=sys.prefix, version=sys.version_info[:2], argv=sys.argv)
    return Session(script)
