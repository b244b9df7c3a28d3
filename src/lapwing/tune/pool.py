"""Compiling ahead: processes that fill a backend's cache on disk while the device times other candidates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from time import monotonic

from .backends import get
from .backends.base import Config, Refused
from .blas import cores
from .gemm import Gemm
from .worker import Worker

__all__ = ["Pool"]

_MOST = 16


class Pool:
    """Threads that each own one compiling process; nothing is started for backends that do not compile."""

    def __init__(self, names: tuple[str, ...], size: int | None = None) -> None:
        self._compiling = {name for name in names if getattr(get(name), "precompiles", get(name).name == "triton")}
        self.size = size or max(1, min(_MOST, cores() - 1))
        self._threads: ThreadPoolExecutor | None = None
        self._own = threading.local()
        self._workers: list[Worker] = []

    def ahead(self, backend: str) -> int:
        """How many candidates to have under way."""
        return self.size if backend in self._compiling else 0

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
        """The candidates of ``source(whether others are under way)``, those whose compilation is done first."""
        ahead = self.ahead(backend)
        if not ahead:
            while (config := source(False)) is not None:
                yield config, None
            return
        under_way: list[tuple[Config, Future[None]]] = []
        try:
            while True:
                while len(under_way) < ahead and (config := source(bool(under_way))) is not None:
                    under_way.append((config, self.submit(backend, gemm, config, device, timeout)))
                if not under_way:
                    return
                while not wait([f for _, f in under_way], 0.2, FIRST_COMPLETED).done:
                    if stopped() or monotonic() > until:
                        return
                ready = next(pair for pair in under_way if pair[1].done())
                under_way.remove(ready)
                yield ready
        finally:
            for _, future in under_way:
                future.cancel()

    def submit(self, backend: str, gemm: Gemm, config: Config, device: int, timeout: float) -> Future[None]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="lapwing-compile")
        return self._threads.submit(self._compile, backend, gemm, config, device, timeout)

    def _compile(self, backend: str, gemm: Gemm, config: Config, device: int, timeout: float) -> None:
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is None or worker.device != device:
            if worker is not None:
                worker.close()
            worker = self._own.worker = Worker(device, "compile")
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
