"""The probes for GPU kernels, run on the CPU: each fault is found by the probe that is meant for it."""

from __future__ import annotations

import pytest

from lapwing.tune.backends.base import Kernel, Refused
from lapwing.tune.gemm import Gemm
from lapwing.tune.validate.probes import probes as every_backend

torch = pytest.importorskip("torch")
from lapwing.tune.backends.cuda_bench import CudaBench, TorchDefault, probes  # noqa: E402

F32 = dict.fromkeys(("a_type", "b_type", "c_type", "d_type"), "f32")
GEMM = Gemm(48, 32, 64, "T", "N", deterministic=True, **F32)
F8 = Gemm(48, 32, 64, "T", "N", "f8e4m3", "f8e4m3", "bf16", "bf16", scale_a="row", scale_b="row")


class Faulty:
    compile_seconds, resources = 0.0, {}

    def __init__(self, gemm, fault):
        self.gemm, self.fault, self.runs = gemm, fault, 0

    def run(self, o):
        g, self.runs = self.gemm, self.runs + 1
        left, right = o.b.double(), o.a.double().mT
        if self.fault == "pads" and g.ldb > g.k:  # it uses the inner dimension as the leading one
            left = o.b.as_strided((g.n, g.k), (g.k, 1)).double()
        y = left @ right
        if self.fault == "tail" and g.k % 4:
            y = left[:, : -(g.k % 4)] @ right[: -(g.k % 4)]
        y = y * (1.0 if o.scale_a is None else o.scale_a.double()) * (1.0 if o.scale_b is None else o.scale_b.double()[:, None])
        y = g.alpha * y + (g.beta * o.c.double() if g.beta and self.fault != "beta" else 0.0)
        if self.fault == "overflow":
            y = y.clamp(-6e4, 6e4)
        if self.fault == "varies":
            y = y * (1 + 2.0**-22 * self.runs)
        o.d.copy_(y)
        if self.fault == "outside":
            o.guarded[0] = 1.0
        if self.fault == "refuses" and g.k % 4:
            raise Refused("runtime", "not for odd sizes")


class Rough(TorchDefault):
    def run(self, o):
        super().run(o)
        o.d.mul_(1.5)


def bench(gemm, fault="", default=False):
    made = CudaBench.__new__(CudaBench)  # without streams and sets, which need a GPU
    made.gemm, made.device, made.seed = gemm, -1, 3
    made.bind = lambda g, config: TorchDefault(g) if default else Faulty(g, fault)
    made._library_error = {}
    return made


def test_the_probes_of_every_backend_are_asked():
    for gemm in (GEMM, F8, Gemm(48, 32, 64, "T", "N", batch=3, **F32)):
        assert {p.name for p in every_backend(gemm)} <= {p.name for p in probes(gemm)}
    errors = bench(GEMM).check(Kernel({}, print))
    assert set(errors) == {p.name for p in probes(GEMM)} and max(errors.values()) <= 1
    quick = bench(GEMM).quick_check(Kernel({}, print))
    assert set(quick) < set(errors) and "product" in quick
    assert {"large scales", "small scales"} <= set(bench(F8).check(Kernel({}, print)))
    # torch's own product is the default whatever its errors are, with this product or with others
    assert set(bench(F8, default=True).check(Kernel({}, print))) == {p.name for p in probes(F8) if p.gemm == F8}
    made = bench(GEMM, default=True)
    made.bind = lambda g, config: Rough(g)
    assert made.check(Kernel({}, print))["product"] > 1


@pytest.mark.parametrize(
    ("gemm", "fault", "probe"),
    [
        (GEMM, "pads", "padded"),
        (GEMM, "tail", "odd tails"),
        (GEMM, "beta", "alpha, beta"),
        (GEMM, "varies", "product"),
        (GEMM, "outside", "product: something outside D"),
        (F8, "overflow", "large scales"),
    ],
)
def test_each_fault_is_found(gemm, fault, probe):
    with pytest.raises(Refused, match=f"^{probe}") as found:
        bench(gemm, fault).check(Kernel({}, print))
    assert found.value.kind == "correctness"


def test_a_configuration_that_is_not_for_odd_sizes_stays():
    errors = bench(GEMM, "refuses").check(Kernel({}, print))
    assert "product" in errors and "odd tails" not in errors
    with pytest.raises(Refused, match="not for odd"):
        bench(Gemm(48, 32, 62, "T", "N", **F32), "refuses").check(Kernel({}, print))
