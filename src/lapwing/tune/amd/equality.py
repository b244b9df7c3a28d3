"""Merge library logic of TensileLite: add new exact sizes and their kernels to an existing Equality file.

The rules are those of AMD's TensileMergeLibrary. Logic may be a list of twelve items, or a dict with the same names. Nothing
here was run on AMD hardware, and hipBLASLt must be built again with the result.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

# position in the list of each item that is read or written
PLACES = {"ProblemType": 4, "Solutions": 5, "ExactLogic": 7, "LibraryType": 11}
_NAMED = ("SolutionIndex", "SolutionNameMin")  # fields that do not distinguish solutions


class LogicError(ValueError):
    """The files do not belong together."""


@dataclass
class Merged:
    """The merged logic, and what happened to each size: "kept", "replaced", "added" or "refused", with the reason."""

    logic: Any
    ledger: list[tuple[str, list[int], str]] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(f"{word:8} {size}: {reason}" for word, size, reason in self.ledger)


def merge_logic(base: Any, new: Any, *, force: bool = True, no_efficiency: bool = False, folder: str = "Equality") -> Merged:
    """Merge ``new`` into a copy of ``base``.

    Parameters
    ----------
    base, new : list or dict
        Library logic as read from YAML.
    force : bool
        A size that both files have gets the new kernel, as in AMD's tool. False: only if the new kernel is more efficient.
    no_efficiency : bool
        Store 0 as efficiency. Then a later merge without force replaces the kernel too, since any efficiency is more than 0.
    folder : str
        The folder of the base, which must be the kind of both files.

    Returns
    -------
    Merged
        In the form of ``base``. Kernels that no size uses are removed, and the others are numbered again.
    """
    for name, logic in (("base", base), ("new", new)):
        if _get(logic, "LibraryType") != folder:
            raise LogicError(f"equality: the {name} file is of kind {_get(logic, 'LibraryType')!r}, but its folder is {folder}")
    theirs, ours = _get(new, "ProblemType"), _get(base, "ProblemType")
    differ = sorted(k for k in {*ours} & {*theirs} if ours[k] != theirs[k])
    if differ:
        rows = ", ".join(f"{k} is {ours[k]} in the base and {theirs[k]} in the new file" for k in differ)
        raise LogicError(f"equality: the files are for different problems: {rows}")
    merged = Merged(copy.deepcopy(base))
    solutions: list[dict[str, Any]] = [_tidy(s) for s in _get(merged.logic, "Solutions")]
    # fields that only an older TensileLite wrote are removed, or no kernel would be recognised
    for where in (_get(merged.logic, "ProblemType"), *(s["ProblemType"] for s in solutions if "ProblemType" in s)):
        for name in {*ours} - {*theirs}:
            where.pop(name, None)
    table = _exact(base)
    incoming = [_tidy(s) for s in copy.deepcopy(_get(new, "Solutions"))]
    by_number = {s.get("SolutionIndex", i): s for i, s in enumerate(incoming)}
    in_use = {index for index, _ in table.values()}
    solutions = [s for i, s in enumerate(solutions) if s.get("SolutionIndex", i) in in_use]
    numbers = {s.get("SolutionIndex", i): i for i, s in enumerate(solutions)}
    if missing := in_use - set(numbers):
        raise LogicError(f"equality: the base file names kernel {min(missing)}, which it does not have")
    # sizes, with the index of their kernel in ``solutions``
    chosen = {size: (numbers[index], efficiency) for size, (index, efficiency) in table.items()}
    for size, (index, efficiency) in _exact(new).items():
        if index not in by_number:
            raise LogicError(f"equality: size {list(size)} names kernel {index}, which the new file does not have")
        known = chosen.get(size)
        if known is not None and not force and not efficiency > known[1]:
            merged.ledger.append(("refused", list(size), f"efficiency {efficiency} is not more than {known[1]}"))
            continue
        chosen[size] = _place(solutions, by_number[index]), 0.0 if no_efficiency else efficiency
        reason = "new size" if known is None else f"efficiency {efficiency}, was {known[1]}{', forced' if force else ''}"
        merged.ledger.append(("added" if known is None else "replaced", list(size), reason))
    listed = {tuple(size) for _, size, _ in merged.ledger}
    merged.ledger += [("kept", list(size), "only in the base") for size in chosen if size not in listed]
    _put(merged.logic, solutions, chosen)
    return merged


def _exact(logic: Any) -> dict[tuple[int, ...], tuple[int, float]]:
    """Kernel and efficiency of each size. Leading dimensions are dropped, as in AMD's tool; the last of equal sizes counts."""
    rows = _get(logic, "ExactLogic") or []
    return {tuple(size[:4]): (int(index), float(efficiency)) for size, (index, efficiency) in rows}


def _place(solutions: list[dict[str, Any]], wanted: dict[str, Any]) -> int:
    """The index of this kernel in the list; it is added if it is missing."""
    described = [{k: v for k, v in s.items() if k not in _NAMED} for s in (*solutions, wanted)]
    if (place := described.index(described[-1])) < len(solutions):
        return place
    solutions.append(wanted)
    return len(solutions) - 1


def _tidy(solution: dict[str, Any]) -> dict[str, Any]:
    """Clear the fields that have no meaning without staggering."""
    if solution.get("StaggerU") == 0:
        solution |= dict.fromkeys(("StaggerUMapping", "StaggerUStride", "_staggerStrideShift"), 0)
    return solution


def _put(logic: Any, solutions: list[dict[str, Any]], chosen: dict[tuple[int, ...], tuple[int, float]]) -> None:
    used = sorted({at for at, _ in chosen.values()})
    renumbered = {at: number for number, at in enumerate(used)}
    _set(logic, "Solutions", [solutions[at] | {"SolutionIndex": number} for at, number in renumbered.items()])
    _set(logic, "ExactLogic", [[list(size), [renumbered[at], eff]] for size, (at, eff) in chosen.items()])


def _get(logic: Any, name: str) -> Any:
    if isinstance(logic, dict):
        return logic.get(name)
    if not isinstance(logic, list) or len(logic) != 12:
        raise LogicError(f"equality: library logic is a list of 12 or a dict, not {_form(logic)}")
    return logic[PLACES[name]]


def _set(logic: Any, name: str, value: Any) -> None:
    if isinstance(logic, dict):
        logic[name] = value
    else:
        logic[PLACES[name]] = value


def _form(logic: Any) -> str:
    return f"a list of {len(logic)}" if isinstance(logic, list) else f"a {type(logic).__name__}"
