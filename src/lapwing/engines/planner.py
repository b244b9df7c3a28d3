"""Chooses an engine, says why, and hands the same rules to the native core.

The choice is a pure function of the problem, the engines that are usable here, and the measured records. The
native core decides by the same rules where shapes are known only at run time (under jit, vmap and export).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.native import AUTO, DTYPE_CODE, ENGINES, OPS, native
from ..core.plan import Alternative, Capability, Plan
from ..core.problem import DEVICES, DTYPES, SOLVED, Problem
from ..core.records import Record, Rule, load_records, rules_of
from ..core.settings import cache_folder, cache_path, cuda_paths
from . import batched, cost, cusolver, krylov, lapack, reference, tiled
from .engine import Engine
from .several import SEVERAL

__all__ = [
    "ALL",
    "AUTO",
    "EngineStatus",
    "capabilities",
    "code_of",
    "engines",
    "free_memory",
    "hardware_of",
    "log_decision",
    "log_notes",
    "logging_decisions",
    "plan",
    "record_for",
    "reload_records",
]

_EVERY = (batched, lapack, tiled, cusolver, krylov, reference)
ALL: dict[str, Engine] = {module.ENGINE.name: module.ENGINE for module in _EVERY}
_log = logging.getLogger("lapwing")
_THREADS = native.allowed_threads() if native is not None else 1
# what has rules of its own: values alone go where the vectors go, and for a part of a spectrum the rules are asked by the
# number of values instead of the batch
_RULED = ("cholesky", "eigh", "eigh_part", *SOLVED)
_NO_END = 2**62

# Where no record of this hardware exists. On the CPU our kernel gives a matrix one thread, LAPACK all of them: with two
# threads ours wins a little further (records/cholesky-cpu-*.json), with many LAPACK may win earlier. On the GPU the limits
# are those of the H200 (records/cholesky-cuda-nvidia-h200.json).
_CPU_LIMIT = {"float32": 768, "float64": 512, "complex64": 512, "complex128": 384}
_BATCHED_LIMIT, _TILED_LIMIT = 128, 4096
# From so many matrices on, up to this order, many side by side are faster than one after the other. On the CPU a vector of
# matrices takes the same time full or nearly empty; a GPU wants to be filled.
_FEWEST_EIGH = {16: 1, 32: 4, 64: 8, batched.LARGEST_EIGH["cpu"]: 16}
# as solve_fits in native/solve_cpu.cc, which decides, with the widest vectors
_FEWEST_SOLVE = {
    **{("cpu", d): {16: 1, 32: 4 * k, 64: 8 * k} for d, k in zip(DTYPES, (2, 1, 2, 1), strict=True)},
    **{("cuda", d): {batched.LARGEST_SOLVE["cuda"]: 1} for d in DTYPES},
}
_FEWEST_EIGH_ON_GPU = {32: 1, 64: 2, 192: 16, batched.LARGEST_EIGH["cuda"]: 32}
# How many values at an end of the spectrum the iteration finds sooner than the direct routine, from which order on. On the
# H200 16 of 16384 took 17 ms (kernel matrix) and 109 ms (Wishart) against 2.8 s, 1000 of 20000 took 0.7 s (2026-11-15,
# benchmarks/results/h200-eigh); smaller orders and complex matrices were not compared there.
_KRYLOV_LIMIT = {"cpu": {1000: 16, 2000: 64, 4000: 128}, "cuda": {16000: 1024}}
_KRYLOV_DTYPES = {"cpu": DTYPES, "cuda": ("float32", "float64")}
_DEFAULT_RULES = {
    ("cholesky", "cpu"): [
        *[Rule(d, "batched", 0, n) for d, n in _CPU_LIMIT.items()],
        *[Rule(d, "lapack", n + 1) for d, n in _CPU_LIMIT.items()],
    ],
    ("cholesky", "cuda"): [
        *[Rule(d, "batched", 0, _BATCHED_LIMIT) for d in DTYPES],
        *[Rule(d, "tiled", _BATCHED_LIMIT + 1, _TILED_LIMIT) for d in DTYPES],
        *[Rule(d, "cusolver", _TILED_LIMIT + 1) for d in DTYPES],
    ],
    ("eigh", "cpu"): [
        *[Rule(d, "batched", 0, n, fewest) for d in DTYPES for n, fewest in _FEWEST_EIGH.items()],
        *[Rule(d, "lapack") for d in DTYPES],
    ],
    ("eigh", "cuda"): [
        *[Rule(d, "batched", 0, n, fewest) for d in DTYPES for n, fewest in _FEWEST_EIGH_ON_GPU.items()],
        *[Rule(d, "cusolver") for d in DTYPES],
    ],
    **{
        ("eigh_part", device): [
            *[Rule(d, "krylov", n, None, 0, k) for d in _KRYLOV_DTYPES[device] for n, k in _KRYLOV_LIMIT[device].items()],
            *[Rule(d, direct) for d in DTYPES],
        ]
        for device, direct in (("cpu", "lapack"), ("cuda", "cusolver"))
    },
    **{
        (operation, device): [
            *[
                Rule(d, "batched", 0, n, fewest)
                for d in DTYPES
                for n, fewest in _FEWEST_SOLVE[device, d].items()
                if operation in batched.SMALL
            ],
            # by the rows alone; _pays looks at both sides
            *[Rule(d, "batched", 0, batched.SIDES[device][0]) for d in DTYPES if operation in ("svd", "svdvals")],
            *[Rule(d, direct) for d in DTYPES],
        ]
        for operation in SOLVED
        for device, direct in (("cpu", "lapack"), ("cuda", "cusolver"))
    },
}


@dataclass(frozen=True)
class EngineStatus:
    """One engine as it stands on this machine."""

    name: str
    what: str
    usable_on: tuple[str, ...]
    missing: str  # "" or why it is not usable, by device

    def __str__(self) -> str:
        where = f"usable on {', '.join(self.usable_on)}" if self.usable_on else f"not usable: {self.missing}"
        return f"{self.name}: {self.what}; {where}"


def engines() -> list[EngineStatus]:
    """What is usable here, and why the rest is not.

    Returns
    -------
    list of EngineStatus
        ``name``, ``what``, ``usable_on`` (devices) and ``missing`` (a reason in words).

    Examples
    --------
    >>> import lapwing as lw
    >>> "batched" in [e.name for e in lw.engines()]
    True
    """
    found = []
    for engine in ALL.values():
        reasons = {c.device: engine.missing(c.device) for c in engine.capabilities}
        usable = tuple(device for device, reason in reasons.items() if not reason)
        text = "; ".join(f"{device}: {reason.splitlines()[0]}" for device, reason in reasons.items() if reason)
        found.append(EngineStatus(engine.name, engine.described(), usable, text))
    for several in SEVERAL:
        reasons = {device: several.missing(device) for device in several.devices}
        usable = tuple(device for device, reason in reasons.items() if not reason)
        text = "; ".join(f"{device}: {reason.splitlines()[0]}" for device, reason in reasons.items() if reason)
        found.append(EngineStatus(several.name, f"{several.what} (matrices over several devices)", usable, text))
    return found


def capabilities() -> list[Capability]:
    return [row for engine in ALL.values() for row in engine.capabilities]


def plan(problem: Problem, engine: str = "auto") -> Plan:
    """Choose an engine for the problem and say why. Runs nothing."""
    if engine != "auto":
        code_of(engine, problem)
        name, reason = engine, "you asked for it"
    else:
        name, reason = _choose(problem)
    # the size query needs the library; without it the plan still says what would be used
    support = ALL[name].support(problem)
    return Plan(
        problem,
        name,
        reason,
        *(ALL[name].workspace(problem) if support else (0, 0)),
        flops=cost.flops(problem),
        bytes_moved=cost.bytes_moved(problem),
        predicted_seconds=_predict(problem, name),
        missing=support.reason,
        others=tuple(
            Alternative(other.name, *other.workspace(problem), _predict(problem, other.name))
            for other in ALL.values()
            if other.name != name and other.support(problem)
        ),
    )


def _ruled(problem: Problem) -> tuple[str, int]:
    """Whose rules decide, and the number they ask for beside n."""
    if problem.operation not in ("eigh", "eigvalsh"):
        return problem.operation, problem.batch
    return ("eigh_part", problem.count) if problem.at_an_end else ("eigh", problem.batch)


def _predict(problem: Problem, engine: str) -> float | None:
    operation, second = _ruled(problem)
    record = record_for(operation, problem.device)
    return record.predict(problem.dtype, problem.n, second, engine) if record else None


def _choose(problem: Problem) -> tuple[str, str]:
    if native is None and problem.device == "cpu":
        return "reference", "the native core is not there"
    operation, second = _ruled(problem)
    if operation == "eigh_part":
        # many small ones are always done together
        name, reason = _first_rule("eigh", problem, problem.batch)
        if name == "batched":
            return name, reason
    name, reason = _first_rule(operation, problem, second)
    if name == "cusolver" and tiled.ENGINE.support(problem) and not cusolver.ENGINE.support(problem):
        return "tiled", f"cusolver would be first, but {cusolver.ENGINE.missing('cuda').splitlines()[0]}"
    return name, reason


def _first_rule(operation: str, problem: Problem, second: int) -> tuple[str, str]:
    record = record_for(operation, problem.device)
    source = "the built-in limits, as there is no record of this hardware"
    if record:
        source = f"the shipped record of {record.hardware}" if _is_shipped(record) else f"your own record {record.source}"
    what = f"{second} of {problem.n} eigenvalues" if operation == "eigh_part" else f"n = {problem.n} in a batch of {second}"
    for rule in _rules_for(operation, problem.device):
        if rule.fits(problem.dtype, problem.n, second) and _pays(rule.engine, problem):
            return rule.engine, f"{what}: fastest by {source}"
    raise AssertionError(f"no rule for {problem}")


def _pays(engine: str, problem: Problem) -> bool:
    """Rules know one size of a matrix; the core looks at the other (solve_fits in native/solve_cpu.cc and solve_cuda.cc)."""
    if engine != "batched" or problem.operation not in ("svd", "svdvals"):
        return True
    return not batched.ENGINE.refuses(problem) and problem.batch >= batched.fewest_svd(problem)


def code_of(engine: str, problem: Problem) -> int:
    """The native number of an engine the user named; refused when it cannot take the problem."""
    if engine == "auto":
        return AUTO
    if engine not in ALL:
        names = ", ".join(map(repr, ["auto", *ALL]))
        raise ValueError(f"{problem.operation}: engine={engine!r} is not known\nhint: use one of {names}")
    support = ALL[engine].support(problem)
    if not support:
        raise ValueError(f"{problem.operation}: engine={engine!r} cannot take this call: {support.reason}")
    return ENGINES.get(engine, AUTO)


def logging_decisions() -> bool:
    return _log.isEnabledFor(logging.INFO)


def log_decision(problem: Problem, engine: str) -> None:
    name, reason = _choose(problem) if engine == "auto" else (engine, "you asked for it")
    _log.info("%s: %s, because %s", problem, name, reason)


def log_notes() -> None:
    """What the engines had to say about the last call."""
    for line in native.notes() if native is not None else ():
        _log.info("%s", line)


def free_memory() -> int:
    """Bytes free on the current GPU; 0 where it cannot be asked."""
    try:
        return int(native.free_memory(0)) if native is not None else 0
    except RuntimeError:
        return 0


def hardware_of(device: str) -> str:
    """What a record of this machine carries as its hardware: the GPU's name, or the CPU's instruction set and threads."""
    if native is None:
        return "none"
    if device == "cpu":
        return f"{native.simd()}, {_THREADS} threads"
    found = native.gpus()
    return str(found[0][0]) if found else "none"


_RECORDS: list[Record] = []
_SHIPPED = Path(__file__).parent.parent / "records"


def _is_shipped(record: Record) -> bool:
    return Path(record.source).parent == _SHIPPED


def reload_records() -> None:
    """Read the records again and hand the rules to the native core."""
    own = cache_folder("records")
    _RECORDS[:] = load_records([*([own] if own else []), _SHIPPED])
    if native is None:
        return
    here = hardware_of("cpu")
    native.set_rules("", [row for op in _RULED for row in (*_rows(op, "cpu", here), *_rows(op, "cuda", ""))])
    # the driver is not started for this: the core asks for the GPU's name when it first runs there
    for hardware in {r.hardware for r in _RECORDS if r.device == "cuda"}:
        native.set_rules(hardware, [row for op in _RULED for row in _rows(op, "cuda", hardware)])


def record_for(operation: str, device: str, hardware: str | None = None) -> Record | None:
    """The record in use for this hardware, by default the one here: the user's own before the shipped ones."""
    candidates = [r for r in _RECORDS if r.operation == operation and r.device == device]
    if not candidates:
        return None
    hardware = hardware_of(device) if hardware is None else hardware
    return next((r for r in candidates if r.hardware == hardware), None)


def _rules_for(operation: str, device: str, hardware: str | None = None) -> list[Rule]:
    record = record_for(operation, device, hardware)
    if operation == "cholesky" and device == "cpu" and lapack.ENGINE.missing("cpu"):
        return [Rule(dtype, "batched") for dtype in DTYPES]
    measured = rules_of(record) if record else []
    return [*_within_limits(operation, device, measured), *_DEFAULT_RULES[operation, device]]


def _within_limits(operation: str, device: str, rules: list[Rule]) -> list[Rule]:
    """A measured rule reaches as far as its engine does; one for an engine not known here is dropped."""
    public = operation.removesuffix("_part")
    known = {c.engine for c in capabilities() if c.operation == public and c.device == device} & set(ENGINES)
    out: list[Rule] = []
    for rule in rules:
        if rule.engine not in known:
            continue
        largest = ALL[rule.engine].largest(Problem(public, rule.dtype, 1, 1, device))
        out.append(replace(rule, n_max=_smaller(rule.n_max, largest)))
        if rule.engine == "cusolver" and operation == "cholesky":
            # It takes the matrices one after the other. Up to here one does not fill the GPU, so a rule measured with one
            # matrix holds for one.
            few = replace(rule, n_max=_smaller(rule.n_max, _TILED_LIMIT), batch_max=_smaller(rule.batch_max, 1))
            out[-1:] = [few, replace(rule, n_min=max(rule.n_min, _TILED_LIMIT + 1))]
    return [r for r in out if r.n_min <= _end(r.n_max) and r.batch_min <= _end(r.batch_max)]


def _end(bound: int | None) -> int:
    return _NO_END if bound is None else bound


def _smaller(a: int | None, b: int | None) -> int | None:
    """The smaller bound; None has no end."""
    return min((x for x in (a, b) if x is not None), default=None)


def _rows(operation: str, device: str, hardware: str) -> list[tuple[int, ...]]:
    return [
        (OPS[operation], DEVICES.index(device), DTYPE_CODE[r.dtype], ENGINES[r.engine],
         r.n_min, _end(r.n_max), r.batch_min, _end(r.batch_max))
        for r in _rules_for(operation, device, hardware)
    ]  # fmt: skip


def _nvidia_wheels() -> str:
    """Folders where pip puts NVIDIA's libraries."""
    import sys

    found = [str(p) for root in sys.path if root for p in Path(root).glob("nvidia/*/lib")]
    return ":".join(found)


if native is not None:
    # nothing is made on disk before there is something to keep
    _sources, _kernels = Path(__file__).parent.parent / "cuda", cache_path("kernels")
    native.configure(str(_sources), str(_kernels or ""), cuda_paths(), _nvidia_wheels())
reload_records()
