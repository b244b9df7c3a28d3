"""Candidates run in a process of their own, so that a crash or a hang costs one trial and nothing else.

``Worker`` is the side of the run; ``main`` is the process. They exchange JSON lines through pipes. The process is a fresh
interpreter, not a fork, and the program's start method is not touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic, perf_counter
from typing import Any

from ..backends.base import Bench, Config, Kernel, Refused
from ..gemm import Gemm


@dataclass(frozen=True)
class Candidate:
    backend: str
    config: Config


class Busy(Exception):
    """Another process kept the device for longer than this one could wait."""


class Worker:
    """One process for one device. It starts when first needed, and again after it died.

    Every method raises Refused when the process dies ("runtime"), takes too long ("timeout") or refuses the request.
    """

    def __init__(self, device: int, family: str) -> None:
        self.device, self.family = device, family
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._buffer = b""
        self._open: tuple[Any, ...] | None = None
        self.patience: float | None = None  # time.monotonic() at which to stop waiting for the device

    def open(self, backend: str, gemm: Gemm, seed: int, timeout: float) -> None:
        """Create the operands, unless they exist already."""
        wanted = (backend, gemm, seed)
        if self._open == wanted and self._process is not None:
            return
        self._open = None
        self._ask({"do": "open", "backend": backend, "gemm": gemm.to_dict(), "seed": seed}, timeout)
        self._open = wanted

    def start(self, backend: str, gemm: Gemm, seed: int, timeout: float) -> None:
        """Open the product if no process runs yet: starting one takes longer than a candidate may."""
        if self._process is None:
            self.open(backend, gemm, seed, timeout)

    def try_one(self, config: Config, samples: int, timeout: float, hopeless: float | None = None) -> dict[str, Any]:
        """Build, check and time one candidate. If its first sample is above ``hopeless``, no more are taken."""
        return self._ask({"do": "try", "config": dict(config), "samples": samples, "hopeless": hopeless}, timeout)

    def time(
        self,
        candidates: Sequence[Candidate],
        gemm: Gemm,
        seed: int,
        samples: int,
        timeout: float,
        checks: str = "all",
    ) -> list[Any]:
        """Build, check and time several candidates in turns. Each answer has runtimes and errors, or the reason of a refusal.

        ``checks``: "all", "quick" (as in a search) or "none". ``others`` in an answer is the share of the processors that
        other programs took meanwhile.
        """
        self._open = None
        listed = [{"backend": c.backend, "config": dict(c.config)} for c in candidates]
        request = {"do": "time", "candidates": listed, "gemm": gemm.to_dict(), "seed": seed, "samples": samples}
        return list(self._ask(request | {"checks": checks}, timeout)["results"])

    def precompile(self, backend: str, gemm: Gemm, config: Config, timeout: float) -> None:
        self._ask({"do": "precompile", "backend": backend, "gemm": gemm.to_dict(), "config": dict(config)}, timeout)

    def close(self) -> None:
        """End the process at once: it has nothing to save."""
        if self._process is None:
            return
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process, self._open, self._buffer = None, None, b""

    def _start(self) -> subprocess.Popen[bytes]:
        paths = [p for p in sys.path if p]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), PYTHONUNBUFFERED="1")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-c", "from lapwing.tune.search.worker import main; main()", str(self.device), self.family]
        # a session of its own: Ctrl-C at the terminal reaches only the run, which then ends its workers
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment, start_new_session=True
        )
        return self._process

    def _ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        begun = monotonic()
        answer = self._read(timeout)
        left = timeout - (monotonic() - begun)  # for all phases together, or a budget could be spent several times
        while answer.get("phase"):  # waiting for the lock of the device does not count as time of the candidate
            waiting, begun = answer["phase"] == "waiting", monotonic()
            try:
                patience = None if self.patience is None else max(0.1, self.patience - monotonic())
                answer = self._read(patience if waiting else max(left, 0.0))
            except Refused as refused:
                if waiting and refused.kind == "timeout":
                    raise Busy(f"device {self.device} is in use by another process") from None
                raise
            left -= 0.0 if waiting else monotonic() - begun
        if "refused" in answer:
            raise Refused(answer["refused"], answer["reason"])
        return answer

    def kill(self) -> None:
        """End the process from another thread; the thread that waits for an answer sees that it died."""
        if (process := self._process) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _read(self, timeout: float | None) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdout is not None
        end = None if timeout is None else monotonic() + timeout
        try:
            while b"\n" not in self._buffer:
                left = None if end is None else end - monotonic()
                if (left is not None and left <= 0) or not select.select([process.stdout], [], [], left)[0]:
                    self.close()
                    raise Refused("timeout", f"no answer within {timeout:.3g} s")
                if not (part := os.read(process.stdout.fileno(), 65536)):
                    raise self._died()
                self._buffer += part
        except KeyboardInterrupt:
            self.close()
            raise
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    def _died(self) -> Refused:
        process = self._process
        assert process is not None
        code = process.wait()
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 2000))
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        self.close()
        how = f"with {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return Refused("runtime", f"the process ended {how}" + (f"; it last printed: {last[0]}" if last else ""))


def main() -> None:
    """The worker process: serve requests until the input ends."""
    device, family = int(sys.argv[1]), sys.argv[2]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected here, and dumping a large process takes minutes
    # a library may print to stdout, which must not mix with the answers
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            requests.put(json.loads(line))
        os._exit(0)  # the run has ended

    threading.Thread(target=listen, daemon=True).start()
    server = _Server(device, family, lambda answer: print(json.dumps(answer), file=answers, flush=True))
    while True:
        server.serve(requests.get())


class _Server:
    def __init__(self, device: int, family: str, send: Any) -> None:
        self.device, self.family, self.send = device, family, send
        self.benches: dict[str, Bench] = {}
        self.product: tuple[Gemm, int] | None = None
        self.others = 0.0

    def serve(self, request: dict[str, Any]) -> None:
        try:
            self.send(getattr(self, "do_" + request.pop("do"))(**request))
        except Refused as refused:
            self.send({"refused": refused.kind, "reason": str(refused)})
        except Exception as error:  # a candidate can fail in any way
            text = (str(error).splitlines() or [""])[0]
            self.send({"refused": "runtime", "reason": f"{type(error).__name__}: {text}"[:500]})

    def do_open(self, backend: str, gemm: dict[str, Any], seed: int) -> dict[str, Any]:
        self._bench(backend, Gemm.from_dict(gemm), seed, alone=True)
        return {"ok": True}

    def do_precompile(self, backend: str, gemm: dict[str, Any], config: Config) -> dict[str, Any]:
        from ..backends import get

        get(backend).precompile(Gemm.from_dict(gemm), config, self.device)
        return {"ok": True}

    def do_try(self, config: Config, samples: int, hopeless: float | None) -> dict[str, Any]:
        (bench,) = self.benches.values()
        kernel, answer = _built(bench, config, "quick")
        answer["runtimes"] = self._timed(bench, [kernel], 1)[0]
        if hopeless is None or answer["runtimes"][0] <= hopeless:
            answer["runtimes"] += self._timed(bench, [kernel], samples - 1)[0]
        if (forget := getattr(bench, "forget", None)) is not None:
            forget(kernel)  # else the bench keeps memory for every candidate of a search
        return answer | {"time": median(answer["runtimes"])}

    def do_time(
        self, candidates: list[dict[str, Any]], gemm: dict[str, Any], seed: int, samples: int, checks: str
    ) -> dict[str, Any]:
        results: list[dict[str, Any]] = []
        kernels: list[tuple[dict[str, Any], Kernel, Bench]] = []
        for c in candidates:
            try:
                bench = self._bench(c["backend"], Gemm.from_dict(gemm), seed)
                kernel, answer = _built(bench, c["config"], checks)
                kernels.append((answer, kernel, bench))
            except Refused as refused:
                answer = {"refused": refused.kind, "reason": str(refused)}
            results.append(answer)
        if kernels:
            # benches of one product have the same operand sets, so the clock of the first can run every kernel
            runtimes = self._timed(kernels[0][2], [k for _, k, _ in kernels], samples)
            for (answer, _, _), values in zip(kernels, runtimes, strict=True):
                answer |= {"runtimes": values, "time": median(values), "others": self.others}
        return {"results": results}

    def _bench(self, backend: str, gemm: Gemm, seed: int, alone: bool = False) -> Bench:
        from ..backends import get

        if self.product != (gemm, seed) or (alone and set(self.benches) - {backend}):
            for bench in self.benches.values():
                bench.close()
            self.benches, self.product = {}, (gemm, seed)
        if backend not in self.benches:
            self.benches[backend] = get(backend).open(gemm, self.device, seed)
        return self.benches[backend]

    def _timed(self, bench: Bench, kernels: list[Kernel], samples: int) -> list[list[float]]:
        from ..backends.processors import OtherPrograms
        from ..workdir import lock_device

        self.send({"phase": "waiting"})
        with lock_device(self.device, self.family):
            self.send({"phase": "timing"})
            watch = OtherPrograms()
            runtimes = [list(values) for values in bench.time(kernels, samples)]
            self.others = watch.share()
            return runtimes


def _built(bench: Bench, config: Config, checks: str) -> tuple[Kernel, dict[str, Any]]:
    begun = perf_counter()
    kernel = bench.build(config)
    built = perf_counter()
    # slow checks are left for the best candidates, when they are compared
    look = (getattr(bench, "quick_check", None) if checks == "quick" else None) or bench.check
    errors = {} if checks == "none" else dict(look(kernel))
    checked = perf_counter()
    compiled = kernel.compile_seconds or built - begun
    return kernel, {
        "compilation_time": compiled,
        "validation": checked - built,
        "errors": errors,
        "resources": dict(kernel.resources),
    }
