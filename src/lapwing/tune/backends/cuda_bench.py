"""A product on a CUDA device: the clock and the probes. Works with torch tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..gemm import PACKED, Gemm
from ..validate.probes import RUNS, Probe, bound, judge, largest_error, relative_error
from ..validate.probes import probes as named
from .base import Config, Kernel, Refused
from .cuda_operands import GUARD, Operands, TorchDefault, reference, wait

ROTATED = 200 << 20  # bytes of operands that are used in turn before the first is used again: over three times the 60 MB cache
CALLS = 20  # calls in one graph, at least
_OVER_DEFAULT = 2.0  # the error of a candidate may be this many times that of the default
# for a first look
QUICK = ("product", "other data", "padded", "alpha, beta", "large scales", "small scales")


class Bound(Protocol):
    """A configuration, ready to run on any operands of its shape."""

    resources: Mapping[str, int]
    compile_seconds: float

    def run(self, operands: Operands) -> None: ...


def probes(gemm: Gemm) -> tuple[Probe, ...]:
    """The probes of every backend, and more that GPU kernels can get wrong.

    Packed odd sizes are not aligned, so many configurations do not support them; with padding all configurations are tried.
    """
    first, *near = named(gemm)
    listed = [first, Probe("other data", gemm), *near]
    if odd := next((p.gemm for p in near if p.name == "odd tails"), None):
        aligned = PACKED | {f"ld{x}": -(-odd.stored(x)[0] // 16) * 16 for x in "abcd"}
        listed.append(Probe("odd tails, aligned", replace(odd, **aligned)))
    if gemm.batch == 1 and gemm.n > 1:
        tail: dict[str, Any] = {"n": gemm.n - 1} | ({"ldb": 0} if gemm.trans_b == "T" else {})
        listed.append(Probe("one token less", replace(gemm, **tail)))
    return tuple(listed)


class CudaBench:
    """One product on one device. ``bind(gemm, config)`` of the backend makes a Bound."""

    def __init__(self, gemm: Gemm, device: int, seed: int, bind: Callable[[Gemm, Config], Bound]) -> None:
        import torch

        self.gemm, self.device, self.seed, self.bind = gemm, device, seed, bind
        torch.cuda.set_device(device)
        self.sets = max(1, math.ceil(ROTATED / max(gemm.bytes, 1)))
        self.operands = [Operands.random(gemm, device, seed + i) for i in range(self.sets)]
        self._graphs: dict[tuple[int, int], tuple[Any, int, Kernel]] = {}
        self._library_error: dict[str, float] = {}
        self._stream = torch.cuda.Stream(device)
        self._small = self.small  # one object, because graphs are looked up by it
        self._nothing = Kernel({}, lambda i: None)

    def build(self, config: Config) -> Kernel:
        bound = self.bind(self.gemm, config)
        kernel = Kernel(config, lambda i: bound.run(self.operands[i % self.sets]), bound.compile_seconds, dict(bound.resources))
        try:
            kernel.run(0)
        except RuntimeError as error:
            raise Refused("runtime", f"{dict(config)}: {error}".splitlines()[0]) from error
        self._finish(config)
        return kernel

    def _finish(self, config: Config) -> None:
        import torch

        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError as error:
            raise Refused("runtime", f"{dict(config)}: {error}".splitlines()[0]) from error

    def _graph(self, kernel: Kernel, between: Callable[[int], None] | None) -> tuple[Any, int]:
        """The calls of one sample: each uses another set of operands, so that none is still in the cache."""
        import torch

        key = id(kernel), id(between)
        if key not in self._graphs:
            slow = self.gemm.flops > 2e11  # over about 300 us each, so fewer calls are enough
            calls = max(4 if slow else CALLS, self.sets)
            graph = torch.cuda.CUDAGraph()
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._stream):
                kernel.run(0)  # the first call on a stream allocates memory, which must not happen during the capture
                self._stream.synchronize()
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    for i in range(calls):
                        if between is not None:
                            between(i)
                        kernel.run(i)
                finally:
                    graph.capture_end()
            graph.replay()
            self._finish(kernel.config)
            self._graphs[key] = graph, calls, kernel
        graph, calls, _ = self._graphs[key]
        return graph, calls

    def time(
        self, kernels: Sequence[Kernel], samples: int, *, between: Callable[[int], None] | None = None
    ) -> list[list[float]]:
        """``between(i)`` runs before each call, so that a kernel gains nothing by overlapping with itself.

        Without it, a kernel that overlaps with its neighbours is timed after a small kernel, as in a model, and the time of
        the small kernel is subtracted.
        """

        if between is None and any(k.config.get("pdl") for k in kernels):
            return self._behind_another(kernels, samples)
        return self._timed([self._graph(kernel, between) for kernel in kernels], samples)

    def back_to_back(self, kernels: Sequence[Kernel], samples: int) -> list[list[float]]:
        """Time each kernel directly after itself, with other operands: here it may overlap with the next call."""
        return self._timed([self._graph(kernel, None) for kernel in kernels], samples)

    def small(self, i: int) -> None:
        """A small kernel, like those that produce an operand in a model: it changes the sign of B."""
        import torch

        b = self.operands[i % self.sets].b
        if b.element_size() == 1:
            b.view(torch.uint8).bitwise_xor_(0x80)
        else:
            b.neg_()

    def _behind_another(self, kernels: Sequence[Kernel], samples: int) -> list[list[float]]:
        overlaps = [bool(k.config.get("pdl")) for k in kernels]
        nothing = self._nothing
        graphs = [self._graph(k, self._small if o else None) for k, o in zip(kernels, overlaps, strict=True)]
        *times, alone = self._timed([*graphs, self._graph(nothing, self._small)], samples)
        less = sorted(alone)[len(alone) // 2]
        return [[max(t - less, 1e-8) for t in each] if o else each for each, o in zip(times, overlaps, strict=True)]

    def _timed(self, graphs: Sequence[tuple[Any, int]], samples: int) -> list[list[float]]:
        import torch

        events = [
            [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(samples)]
            for _ in graphs
        ]
        order = list(range(len(graphs)))
        for sample in range(samples):
            for i in order if sample % 2 == 0 else reversed(order):
                start, stop = events[i][sample]
                start.record()
                graphs[i][0].replay()
                stop.record()
        torch.cuda.synchronize(self.device)
        return [[1e-3 * start.elapsed_time(stop) / graphs[i][1] for start, stop in pairs] for i, pairs in enumerate(events)]

    def forget(self, kernel: Kernel) -> None:
        """Free the graph of a kernel that is not timed again."""
        for key in [key for key in self._graphs if key[0] == id(kernel)]:
            del self._graphs[key]

    def quick_check(self, kernel: Kernel) -> Mapping[str, float]:
        """A first check. Odd sizes need kernels of their own, which are compiled only for the best candidates."""
        return self.check(kernel, QUICK)

    def check(self, kernel: Kernel, only: Sequence[str] | None = None) -> Mapping[str, float]:
        """The scaled errors of the probes. The default computes only the product itself, and is not judged."""
        errors = {}
        for number, probe in enumerate(probes(self.gemm)):
            if only is not None and probe.name not in only:
                continue
            try:
                bound = self.bind(probe.gemm, kernel.config)
                untuned = isinstance(bound, TorchDefault)
                if untuned and probe.gemm != self.gemm:
                    continue
                errors[probe.name] = self._probe(probe, bound, self.seed + 1000 + number, judged=not untuned)
            except Refused as refused:
                # a configuration that does not support such a product is never used for it; but a wrong result counts anywhere
                never = refused.kind == "constraints" or (probe.name not in QUICK and refused.kind != "correctness")
                if not never or probe.gemm == self.gemm:
                    raise
        return errors

    def _probe(self, probe: Probe, bound_kernel: Bound, seed: int, judged: bool) -> float:
        """Run three times, check all of D, and return the scaled error; it is at most 1 if it is judged."""
        import torch

        gemm = probe.gemm
        operands = Operands.random(gemm, self.device, seed, scales=probe.scales)
        poison, outputs, untouched = operands.guarded.clone(), [], True

        def same(a: Any, b: Any) -> bool:
            return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))

        for _ in range(RUNS):
            operands.guarded.copy_(poison)
            bound_kernel.run(operands)
            wait(self.device)
            outputs.append(operands.d.clone())
            inside = [x.as_strided(operands.d.shape, operands.d.stride(), GUARD) for x in (operands.guarded, poison)]
            inside[0].copy_(inside[1])
            untouched = untouched and same(operands.guarded, poison)
        answer, size = reference(gemm, operands)
        allowed = bound(gemm, answer, size, reference=2.0 if gemm.a_type == "f64" else 1.0)
        if not judged:
            return max(largest_error(output.double(), answer, allowed) for output in outputs)
        error = self._library(probe.name, gemm, operands, answer)
        tensors: dict[str, Any] = {"wide": torch.Tensor.double, "same": same}
        return judge(probe, outputs, answer, allowed, untouched=untouched, default_error=error, over=_OVER_DEFAULT, **tensors)

    def _library(self, name: str, gemm: Gemm, operands: Operands, answer: Any) -> float:
        """The relative error of torch's own product; that of a candidate may be at most twice as large."""
        if name not in self._library_error:
            operands.d.zero_()
            try:
                TorchDefault(gemm).run(operands)
                error = relative_error(operands.d.double(), answer)
            except RuntimeError:  # torch does not support such a product, so only the bound counts
                error = math.inf
            least = 2.0**-12 if gemm.compute == "tf32" else 0.0
            self._library_error[name] = max(error, least)
        return self._library_error[name]

    def close(self) -> None:
        import torch

        self._graphs.clear()
        self.operands = []
        torch.cuda.empty_cache()
