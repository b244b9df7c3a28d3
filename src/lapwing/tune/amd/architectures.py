"""The AMD GPUs that files can be written for, and how to find the one that a program ran on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import read_json, write_json
from ..gemm import Gemm

ASSUMED = "gfx942"
_FILE = "amd.json"  # in a workdir
_KFD = Path("/sys/class/kfd/kfd/topology/nodes")  # the kernel's list of AMD GPUs
_NAME = re.compile(r"(gfx[0-9a-f]{3,5})(?:_(\d{1,3})cu)?$")
# small floats: gfx942 has types of its own, later ones have the standard types
_ONLY_ON = dict.fromkeys(("f8e4m3fnuz", "f8e5m2fnuz"), "gfx942")
_ONLY_ON |= dict.fromkeys(("f8e4m3", "f8e5m2", "f6e2m3", "f6e3m2", "f4e2m1"), "gfx950")

Instruction = tuple[int, int, int, int]  # M, N, K, blocks


@dataclass(frozen=True)
class Architecture:
    """One GPU, or a part of one (``gfx942_80cu``)."""

    name: str
    family: str  # the name without the number of compute units
    units: int  # compute units
    dies: int  # with a cache each
    schedule: str  # the first word in the names of its library files
    devices: tuple[str, ...]
    instructions: Mapping[str, tuple[Instruction, ...]]  # matrix instructions by the type of A
    peak: Mapping[str, float]  # the most operations per second, by the type of A ("tf32" for f32 that is summed as tf32)


def _instructions(**depths: int) -> dict[str, tuple[Instruction, ...]]:
    """Matrix instructions of 16 x 16 and 32 x 32 results, from the depth of the first; f64 has only one."""
    pairs = {name: ((16, 16, k, 1), (32, 32, k // 2, 1)) for name, k in depths.items()}
    return {**pairs, "f64": ((16, 16, 4, 1),)}


_T = 1e12
_KNOWN = {
    "gfx90a": Architecture(
        "gfx90a", "gfx90a", 104, 1, "aldebaran", ("Device 0050", "Device 0051", "Device 0052", "Device 7400", "Device 740c"),
        _instructions(bf16=16, f16=16, i8=16, f32=4),
        # of one die, which is a device of its own
        {"f64": 48 * _T, "f32": 48 * _T, "bf16": 192 * _T, "f16": 192 * _T, "i8": 192 * _T},
    ),
    "gfx942": Architecture(
        "gfx942", "gfx942", 304, 8, "aquavanjaram", ("Device 0049", "Device 0050"),
        _instructions(bf16=16, f16=16, f8e4m3fnuz=32, f8e5m2fnuz=32, i8=32, f32=4),
        {"f64": 164 * _T, "f32": 164 * _T, "tf32": 654 * _T, "bf16": 1308 * _T, "f16": 1308 * _T, "i8": 2615 * _T}
        | dict.fromkeys(("f8e4m3fnuz", "f8e5m2fnuz"), 2615 * _T),
    ),
    "gfx950": Architecture(
        "gfx950", "gfx950", 256, 8, "gfx950", ("Device 75a0",),
        _instructions(bf16=32, f16=32, f8e4m3=128, f8e5m2=128, i8=64, f32=4),
        {"f64": 79 * _T, "f32": 158 * _T, "tf32": 2517 * _T, "bf16": 2517 * _T, "f16": 2517 * _T, "i8": 5034 * _T}
        | dict.fromkeys(("f8e4m3", "f8e5m2"), 5034 * _T) | dict.fromkeys(("f6e2m3", "f6e3m2", "f4e2m1"), 10067 * _T),
    ),
}  # fmt: skip
KNOWN = tuple(_KNOWN)


def family_of(text: str) -> str | None:
    """ "gfx942:sramecc+:xnack-" and "gfx942_80cu" are both "gfx942"; None for other text."""
    match = _NAME.match(text.strip().lower().partition(":")[0])
    return match[1] if match else None


def of_folder(path: Path) -> str | None:
    """The family of a folder in hipBLASLt's tree: asm_full/gfx942/Equality, asm_full/aquavanjaram/gfx942_80cu/Equality."""
    schedules = {known.schedule: known.family for known in _KNOWN.values()}
    parts = reversed(path.resolve().parts)
    return next((family for part in parts if (family := family_of(part) or schedules.get(part))), None)


def get(name: str) -> Architecture:
    """The architecture of this name. ``gfx942_80cu`` is a part of a GPU with 80 compute units."""
    match = _NAME.match(name.strip().lower().partition(":")[0])
    if match is None or match[1] not in _KNOWN:
        raise ValueError(
            f"amd: architecture is {name!r}\nhint: use one of {', '.join(KNOWN)}, or a part of one, for example gfx942_80cu"
        )
    whole = _KNOWN[match[1]]
    if match[2] is None:
        return whole
    units = int(match[2])
    if not 0 < units <= whole.units:
        raise ValueError(f"amd: {name} has {units} compute units\nhint: {whole.name} has 1 to {whole.units}")
    part = units / whole.units
    peak = {kind: part * operations for kind, operations in whole.peak.items()}
    dies = max(1, round(whole.dies * part))
    return Architecture(match[0], whole.name, units, dies, whole.schedule, whole.devices, whole.instructions, peak)


@dataclass(frozen=True)
class Choice:
    """An architecture, and the source of the choice."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def choose(
    named: str | None = None, logged: Iterable[str] = (), gemms: Iterable[Gemm] = (), workdir: str | Path | None = None
) -> Choice:
    """Find the architecture: by name, else from the log, the types in it, the workdir, the GPU of this machine, in this order.

    Parameters
    ----------
    named
        The user's choice, which always counts.
    logged
        The architectures that logs name.
    gemms
        Products. The 8-bit floats of gfx942 (fnuz) are its own, and those of the standard need gfx950.
    workdir
        Where an earlier step stored its choice.

    Raises
    ------
    ValueError
        For an unknown name, and for logs of several architectures.
    """
    if named is not None:
        return Choice(get(named).name, "as named")
    families = sorted({family for name in logged if (family := family_of(name)) is not None})
    if len(families) > 1:
        raise ValueError(
            f"amd: the logs come from {' and '.join(families)}\nhint: choose one with --arch, and use only the logs of that GPU"
        )
    if families:
        return Choice(get(families[0]).name, "the log names it")
    needed = {only for g in gemms for kind in (g.a_type, g.b_type) if (only := _ONLY_ON.get(kind)) is not None}
    if len(needed) > 1:
        raise ValueError(
            "amd: the log has 8-bit floats of gfx942 (fnuz) and of gfx950 (OCP standard), but no GPU has both\n"
            "hint: choose one with --arch; products of the other are kept, but not tuned"
        )
    if stored := recall(workdir):
        return stored
    if needed:
        return Choice(needed.pop(), "its floats of 8 bits or fewer are in the log")
    if here := of_gpu():
        return Choice(here, "the GPU of this machine")
    return Choice(ASSUMED, "assumed: neither the log nor a GPU says; name it with --arch")


def of_gpu(nodes: Path = _KFD) -> str | None:
    """The architecture of the first AMD GPU here that files can be written for; None without one."""
    for path in sorted(nodes.glob("*/properties")):
        try:
            match = re.search(r"^gfx_target_version (\d+)$", path.read_text(), re.M)
        except OSError:
            continue
        version = int(match[1]) if match else 0
        # 90402 is version 9, 4, 2; the last two are hexadecimal digits in the name
        name = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
        if name in _KNOWN:
            return name
    return None


def remember(workdir: str | Path, choice: Choice, *, measured: bool | None = None) -> Path:
    """Store the choice, and whether the shares of the time were measured (None: as it is stored)."""
    known = measured_shares(workdir) if measured is None else measured
    stored = {"schema": 1, "architecture": choice.name, "reason": choice.reason, "measured": known}
    return write_json(Path(workdir) / _FILE, stored)


def measured_shares(workdir: str | Path) -> bool:
    try:
        return read_json(Path(workdir) / _FILE).get("measured") is True
    except (OSError, ValueError):
        return False


def recall(workdir: str | Path | None) -> Choice | None:
    """The choice that :func:`remember` stored; None if it stored nothing, or only an assumption."""
    if workdir is None:
        return None
    try:
        stored: dict[str, Any] = read_json(Path(workdir) / _FILE)
        choice = Choice(get(str(stored["architecture"])).name, str(stored["reason"]))
    except (OSError, ValueError, KeyError):
        return None
    return None if choice.reason.startswith("assumed") else choice
