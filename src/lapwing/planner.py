"""Asks the native core which engine takes a problem, and puts the answer into words. It decides nothing itself.

The records are read here, and the rules that follow from them are handed to the native core, which uses them for every call:
also where shapes are known only at run time (under jit, vmap and export).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from .core import libraries, packs
from .core.engines import ENGINES as ALL
from .core.engines import backends, capabilities, library_engine
from .core.native import AUTO, CUDA, DTYPE_CODE, ENGINES, OPS, missing_reason, native
from .core.plan import Alternative, Plan
from .core.problem import DEVICES, Problem
from .core.records import NEWEST, Record, load_records, rules_of
from .core.settings import cache_folder, cache_path, cuda_paths, default_engine, hip_paths

__all__ = [
    "ALL",
    "AUTO",
    "EngineStatus",
    "capabilities",
    "code_for",
    "code_of",
    "configure",
    "engines",
    "free_memory",
    "hardware_of",
    "library_engine",
    "log_decision",
    "log_notes",
    "logging_decisions",
    "plan",
    "plan_on",
    "record_for",
    "refusal",
    "reload_records",
]

_log = logging.getLogger("lapwing")
_THREADS = native.allowed_threads() if native is not None else 1
_NAMES = {code: name for name, code in ENGINES.items()} | {AUTO: "none"}
_NO_END = 2**62
_TOO_LARGE = 2**28  # an n x n matrix has more elements than 2^56, whose bytes no machine holds


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
    """List the engines: which are usable here, and why the others are not.

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
    rows = [(e.name, e.described(), e.missing, tuple(e.notes)) for e in ALL.values()]
    rows += [(b.name, f"{b.what} (matrices over several devices)", _or_no_gpu(b.missing), b.devices) for b in backends()]
    statuses = []
    for name, what, missing, devices in rows:
        reasons = {device: missing(device) for device in devices}
        usable = tuple(device for device, reason in reasons.items() if not reason)
        text = "; ".join(f"{device}: {reason.splitlines()[0]}" for device, reason in reasons.items() if reason)
        statuses.append(EngineStatus(name, what, usable, text))
    return statuses


def _or_no_gpu(missing: Callable[[str], str]) -> Callable[[str], str]:
    """Why a backend is not usable on a device; where there is no GPU, that is the reason."""
    return lambda device: (ALL[library_engine()].missing("cuda") if device == "cuda" else "") or missing(device)


class _Decision(NamedTuple):
    engine: str
    reason: str
    refusal: str  # why that engine cannot run; "" where it can
    device_bytes: int
    host_bytes: int


def plan_on(problem: Problem, hardware: str) -> Plan:
    """The plan for a GPU that is not here, from its record; for documents about it."""
    return _as_plan(problem, _ask(problem, hardware=hardware))


def _ask(problem: Problem, engine: str = "auto", hardware: str = "") -> _Decision:
    """The native core's decision. ``engine`` is a name that ALL has, or "auto"."""
    if problem.by_framework:
        return _Decision("none", problem.by_framework, "" if engine == "auto" else "no engine is used for it", 0, 0)
    if native is None:
        usable = engine in ("auto", "reference") and problem.device == "cpu"
        name = "reference" if engine == "auto" else engine
        return _Decision(name, "the native core was not built", "" if usable else missing_reason, 0, 0)
    if engine == "reference":
        return _Decision(engine, "you asked for it", "the native core was built, and does this work", 0, 0)
    if max(problem.n, problem.columns or 0) >= _TOO_LARGE:
        raise ValueError(f"{problem.operation}: n = {problem.n} is too large for any machine")
    device, hardware = DEVICES.index(problem.device), hardware or _stand_in(problem.device)
    call = (OPS[problem.operation], DTYPE_CODE[problem.dtype], device, 0 if device == CUDA else -1)
    code, reason, refusal, *memory = native.plan(*call, ENGINES[engine], 0, problem.flags, problem.sizes, hardware)
    if hardware:
        reason += f" (planned for {hardware}, as there is no GPU here)"
        refusal = refusal or ALL["batched"].missing("cuda")
    elif refusal and code:
        # this text has a hint if a library is missing
        refusal = ALL[_NAMES[code]].missing(problem.device) or refusal
    return _Decision(_NAMES[code], f"{reason}{problem.also}", refusal, *memory)


def _stand_in(device: str) -> str:
    """The GPU to plan for on a machine without one: a GPU whose record is shipped. "" if none is needed."""
    if device == "cpu" or native is None or native.gpus():
        return ""
    return next((r.hardware for r in _RECORDS if r.device == "cuda" and _is_shipped(r)), "")


def plan(problem: Problem, engine: str = "auto", name: str = "") -> Plan:
    """Say which engine takes the problem, why, and what it costs. Runs nothing. ``name``: the function that errors name."""
    if engine != "auto":
        code_of(engine, problem, name)
    decision = _ask(problem, engine)
    others = [(name, _ask(problem, name)) for name in _engines_of(problem) if name != decision.engine]
    return _as_plan(problem, decision, [(name, other) for name, other in others if not other.refusal])


def _as_plan(problem: Problem, decision: _Decision, others: Sequence[tuple[str, _Decision]] = ()) -> Plan:
    return Plan(
        problem,
        decision.engine,
        decision.reason,
        decision.device_bytes,
        decision.host_bytes,
        flops=problem.flops,
        bytes_moved=problem.bytes_moved,
        predicted_seconds=_predict(problem, decision.engine),
        missing=decision.refusal,
        others=tuple(
            Alternative(name, other.device_bytes, other.host_bytes, _predict(problem, name)) for name, other in others
        ),
    )


def _engines_of(problem: Problem) -> tuple[str, ...]:
    """The engines that have the operation on that device."""
    return _engines_for(problem.operation, problem.device, problem.dtype)


@cache  # the table has over a hundred rows, and every call with engine= searches it
def _engines_for(operation: str, device: str, dtype: str) -> tuple[str, ...]:
    return tuple(c.engine for c in capabilities() if c.operation == operation and c.device == device and dtype in c.dtypes)


def refusal(engine: str, problem: Problem) -> str:
    """Why the engine cannot take the problem here, or ""."""
    if engine not in _engines_of(problem):
        return f"{engine} has no {problem.operation} for {problem.dtype} on {problem.device}"
    return _ask(problem, engine).refusal


def code_of(engine: str, problem: Problem, name: str = "") -> int:
    """The native number of the engine that the user asked for. Raises ValueError, in the name of the public function, if that
    engine cannot take the problem."""
    if engine == "auto":
        return AUTO
    name = name or problem.operation
    if engine not in ALL:
        raise _unknown(engine, name, _fit(problem))
    if reason := refusal(engine, problem):
        hint = "" if "\nhint:" in reason else f"\nhint: use one of {', '.join(map(repr, ['auto', *_fit(problem)]))}"
        raise ValueError(f"{name}: engine={engine!r} cannot take this call: {reason}{hint}")
    return ENGINES.get(engine, AUTO)


def code_for(framework: Any, a: Any, engine: str, name: str, problems: Callable[[], Sequence[Problem]]) -> int:
    """As :func:`code_of`, for all problems of a call. Where sizes are not numbers yet (torch.compile, symbolic shapes, graphs)
    only the name is checked: the native core refuses when the call runs."""
    if engine == "auto":
        return AUTO
    if framework.sized(a):
        code, *_ = [code_of(engine, problem, name) for problem in problems()]
        return code
    if engine not in ALL:
        raise _unknown(engine, name, list(ALL))
    return ENGINES.get(engine, AUTO)


def _fit(problem: Problem) -> list[str]:
    return [engine for engine in _engines_of(problem) if not refusal(engine, problem)]


def _unknown(engine: Any, name: str, fit: list[str]) -> ValueError:
    what = "is not known"
    if engine in [backend.name for backend in backends()]:
        what = "is for sharded matrices, and this matrix is on one device"
    return ValueError(f"{name}: engine={engine!r} {what}\nhint: use one of {', '.join(map(repr, ['auto', *fit]))}")


logging_decisions = partial(_log.isEnabledFor, logging.INFO)  # a Python function here would slow down small matrices


def log_decision(problem: Problem, engine: str) -> None:
    decision = _ask(problem, engine)
    _log.info("%s: %s, because %s", problem, decision.engine, decision.reason)


def log_notes() -> None:
    """Log the notes that the engines wrote during the last call."""
    for line in native.notes() if native is not None else ():
        _log.info("%s", line)


def free_memory() -> int:
    """Bytes free on the current GPU; 0 if that is not known."""
    try:
        return int(native.free_memory(0)) if native is not None else 0
    except RuntimeError:
        return 0


def hardware_of(device: str) -> str:
    """The name of this machine's hardware in records: the GPU's name, or the CPU's instruction set and threads."""
    if native is None:
        return "none"
    if device == "cpu":
        return f"{native.simd()}, {_THREADS} threads"
    gpus = native.gpus()
    return str(gpus[0][0]) if gpus else "none"


# ---- records

_RECORDS: list[Record] = []
_SHIPPED = Path(__file__).parent / "records"


def _is_shipped(record: Record) -> bool:
    return Path(record.source).parent == _SHIPPED


def reload_records() -> None:
    """Read the records again and hand the rules to the native core."""
    own = cache_folder("records")
    _RECORDS[:] = load_records([*([own] if own else []), _SHIPPED])
    if native is None:
        return
    here = hardware_of("cpu")
    native.set_rules("", _rules_for("cpu", here))
    # for every GPU, as learning its name would start the driver: the core asks for the name when it first runs there
    for hardware in {r.hardware for r in _RECORDS if r.device == "cuda"}:
        native.set_rules(hardware, _rules_for("cuda", hardware))


def record_for(operation: str, device: str, hardware: str | None = None) -> Record | None:
    """The record in use for this hardware, by default the one here: the user's own before the shipped ones."""
    candidates = [r for r in _RECORDS if r.operation == operation and r.device == device]
    if not candidates:
        return None
    hardware = hardware_of(device) if hardware is None else hardware
    return next((r for r in candidates if r.hardware == hardware), None)


def _predict(problem: Problem, engine: str) -> float | None:
    second = problem.count if problem.at_an_end else problem.batch
    hardware = _stand_in(problem.device) or None
    operations = [problem.record, "eigh"] if problem.record == "eigvalsh" else [problem.record]
    records = [r for name in operations if (r := record_for(name, problem.device, hardware))]
    newest = bool(records) and engine == "cusolver" and hardware is None and has_newest_solver()
    names = [engine + NEWEST, engine] if newest else [engine]
    times = (record.predict(problem.dtype, problem.n, second, name) for record in records for name in names)
    return next((seconds for seconds in times if seconds is not None), None)


def has_newest_solver() -> bool:
    """Whether a newer copy of cuSOLVER is used beside the framework's own."""
    return native is not None and any(not problem for _, _, problem, _ in native.solver_copies())


def _rules_for(device: str, hardware: str) -> list[tuple[int | str, ...]]:
    """The measured rules for one kind of hardware, as rows for the native core."""
    rows: list[tuple[int | str, ...]] = []
    for operation in dict.fromkeys(r.operation for r in _RECORDS):
        record = record_for(operation, device, hardware)
        if record is None or (operation == "eigvalsh" and _is_shipped(record) and _has_own("eigh", device, hardware)):
            continue
        kind = "shipped" if _is_shipped(record) else "own"
        source = f"the shipped record of {hardware}" if kind == "shipped" else f"your own record {record.source}"
        table = capabilities()
        public = operation if operation in {c.operation for c in table} else operation.rpartition("_")[0]  # "solve_pos"
        known = {c.engine for c in table if c.operation == public and c.device == device} & set(ENGINES)
        known |= {name + NEWEST for name in known}
        if unfit := {name for m in record.measurements for name in m.seconds} - known:
            names = ", ".join(sorted(unfit))
            _log.warning("record %s: %s: no such engine for %s on %s; ignored", record.source, names, public, device)
        fit = [(m, {e: s for e, s in m.seconds.items() if e in known}) for m in record.measurements]
        usable = replace(record, measurements=tuple(replace(m, seconds=seconds) for m, seconds in fit if seconds))
        rows += [
            (OPS[operation], DEVICES.index(device), DTYPE_CODE[r.dtype], ENGINES[r.engine],
             r.n_min, _end(r.n_max), r.batch_min, _end(r.batch_max), source, r.newest)
            for r in rules_of(usable)
            if operation in OPS
        ]  # fmt: skip
    return rows


def _has_own(operation: str, device: str, hardware: str) -> bool:
    record = record_for(operation, device, hardware)
    return record is not None and not _is_shipped(record)


def _end(bound: int | None) -> int:
    return _NO_END if bound is None else bound


def _prefer(name: str) -> None:
    """Make an engine the default for all calls with engine="auto" that it can take."""
    assert native is not None
    if name not in ENGINES:
        _log.warning("LAPWING_ENGINE=%s is not known and was ignored; use one of %s", name, ", ".join(ENGINES))
    native.prefer(ENGINES.get(name, AUTO))


def configure() -> None:
    """Tell the native core where kernels and libraries are. The cache folder is created when something is kept."""
    assert native is not None
    sources, cache = Path(__file__).parent / "kernels", cache_path("kernels")
    folders = cuda_paths(), ":".join(libraries.folders()), ":".join(libraries.chosen_wheel_folders())
    amd = hip_paths(), ":".join(libraries.amd_folders())
    native.configure(str(sources), packs.places(), str(cache or ""), *folders, *amd)


if native is not None:
    configure()
    _prefer(default_engine())
reload_records()
