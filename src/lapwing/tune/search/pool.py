"""Compile ahead: processes fill a backend's cache on disk while the device times other candidates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from time import monotonic

from ..backends import get
from ..backends.base import Config, Refused
from ..backends.processors import cores
from ..gemm import Gemm
from .worker import Worker

_MOST = 16


class Pool:
    """Threads with one compiling process each. Nothing is started for backends that do not compile."""

    def __init__(self, names: tuple[str, ...], size: int | None = None) -> None:
        self._compiling = {name for name in names if getattr(get(name), "precompiles", get(name).name == "triton")}
        self.size = size or max(1, min(_MOST, cores() - 1))
        self._threads: ThreadPoolExecutor | None = None
        self._local = threading.local()
        self._workers: list[Worker] = []

    def stream(
        self,
        backend: str,
        gemm: Gemm,
        source: Callable[[bool], Config | None],
        device: int,
        timeout: float,
        until: float,
        stopped: Callable[[], bool],
    ) -> Iterator[tuple[Config, Future[None] | None]]:
        """Yield the candidates of ``source(waiting)``, in the order in which their compilation ends.

        ``waiting`` tells the source whether other candidates are still being compiled.
        """
        if backend not in self._compiling:
            while (config := source(False)) is not None:
                yield config, None
            return
        compiling: list[tuple[Config, Future[None]]] = []
        try:
            while True:
                while len(compiling) < self.size and (config := source(bool(compiling))) is not None:
                    self._threads = self._threads or ThreadPoolExecutor(self.size, thread_name_prefix="lapwing-compile")
                    compiling.append((config, self._threads.submit(self._compile, backend, gemm, config, device, timeout)))
                if not compiling:
                    return
                while not wait([f for _, f in compiling], 0.2, FIRST_COMPLETED).done:
                    if stopped() or monotonic() > until:
                        return
                ready = next(pair for pair in compiling if pair[1].done())
                compiling.remove(ready)
                yield ready
        finally:
            for _, future in compiling:
                future.cancel()

    def _compile(self, backend: str, gemm: Gemm, config: Config, device: int, timeout: float) -> None:
        worker: Worker | None = getattr(self._local, "worker", None)
        if worker is None or worker.device != device:
            if worker is not None:
                worker.close()
            worker = self._local.worker = Worker(device, "compile")
            self._workers.append(worker)
        try:
            worker.precompile(backend, gemm, config, timeout)
        except Refused as refused:
            raise Refused("timeout" if refused.kind == "timeout" else "compile", str(refused)) from None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            for worker in self._workers:
                worker.kill()
            self._threads.shutdown(wait=True)
            for worker in self._workers:
                worker.close()
            self._threads = None
