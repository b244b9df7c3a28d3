"""Library logic of TensileLite: merge exact sizes and their kernels into another file, and trim a file to some sizes.

The rules are those of AMD's TensileMergeLibrary. Logic may be a list of twelve items, or a dict with the same names. Nothing
here was run on AMD hardware, and hipBLASLt must be built again with the result.
"""

from __future__ import annotations

import copy
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from .architectures import family_of

# position in the list of each item that is read or written
PLACES = {"ArchitectureName": 2, "ProblemType": 4, "Solutions": 5, "ExactLogic": 7, "LibraryType": 11}
_NAMED = ("SolutionIndex", "SolutionNameMin")  # fields that do not distinguish solutions
_DAMAGED = "hint: the file is damaged or was edited by hand; write it again with TensileLite"


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
            raise LogicError(
                f"equality: the {name} file is of kind {_get(logic, 'LibraryType')!r}, but it is to be merged as {folder}\n"
                f"hint: merge into the folder of that kind"
            )
    gpus = [architecture_of(logic) for logic in (base, new)]
    if all(gpus) and gpus[0] != gpus[1]:
        raise LogicError(
            f"equality: the base file is for {gpus[0]}, and the new one for {gpus[1]}\n"
            "hint: merge into the folder of that architecture"
        )
    theirs, ours = _get(new, "ProblemType"), _get(base, "ProblemType")
    differ = sorted(k for k in {*ours} & {*theirs} if ours[k] != theirs[k])
    if differ:
        rows = ", ".join(f"{k} is {ours[k]} in the base and {theirs[k]} in the new file" for k in differ)
        raise LogicError(
            f"equality: the files are for different problems: {rows}\nhint: the base must be of the same TensileLite and types"
        )
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
        raise LogicError(f"equality: the base file names kernel {min(missing)}, which it does not have\n{_DAMAGED}")
    places = {_frozen(s): at for at, s in reversed(list(enumerate(solutions)))}  # the first of equal kernels
    # sizes, with the index of their kernel in ``solutions``
    chosen = {size: (numbers[index], efficiency) for size, (index, efficiency) in table.items()}
    for size, (index, efficiency) in _exact(new).items():
        if index not in by_number:
            raise LogicError(f"equality: size {list(size)} names kernel {index}, which the new file does not have\n{_DAMAGED}")
        known = chosen.get(size)
        if known is not None and not force and not efficiency > known[1]:
            merged.ledger.append(("refused", list(size), f"efficiency {efficiency} is not more than {known[1]}"))
            continue
        chosen[size] = _place(solutions, places, by_number[index]), 0.0 if no_efficiency else efficiency
        reason = "new size" if known is None else f"efficiency {efficiency}, was {known[1]}{', forced' if force else ''}"
        merged.ledger.append(("added" if known is None else "replaced", list(size), reason))
    listed = {tuple(size) for _, size, _ in merged.ledger}
    merged.ledger += [("kept", list(size), "only in the base") for size in chosen if size not in listed]
    _put(merged.logic, solutions, chosen)
    return merged


def trim_logic(logic: Any, wanted: Container[tuple[int, ...]] | None = None) -> tuple[Any, list[tuple[int, ...]]]:
    """A copy with only these sizes (M, N, batch, K) and the kernels that they use, numbered again; and the sizes it has.

    Without ``wanted`` all sizes stay, and only kernels that no size uses are removed, and those that are there twice.
    """
    trimmed = copy.deepcopy(logic)
    kernels = {s.get("SolutionIndex", i): _tidy(s) for i, s in enumerate(_get(trimmed, "Solutions") or [])}
    solutions: list[dict[str, Any]] = []
    places: dict[Any, int] = {}
    chosen: dict[tuple[int, ...], tuple[int, float]] = {}
    for size, (index, efficiency) in _exact(logic).items():
        if wanted is not None and size not in wanted:
            continue
        if index not in kernels:
            raise LogicError(f"equality: size {list(size)} names kernel {index}, which the file does not have\n{_DAMAGED}")
        chosen[size] = _place(solutions, places, kernels[index]), efficiency
    _put(trimmed, solutions, chosen)
    return trimmed, list(chosen)


def kind_of(logic: Any) -> str:
    """ "Equality", "GridBased", ..."""
    return str(_get(logic, "LibraryType"))


def architecture_of(logic: Any) -> str | None:
    """ "gfx942", or None if the logic does not name it; newer files have a dict that also has the compute units."""
    name = _get(logic, "ArchitectureName")
    return family_of(str(name.get("Architecture") if isinstance(name, dict) else name))


def problem_of(logic: Any) -> dict[str, Any]:
    return dict(_get(logic, "ProblemType") or {})


def sizes_of(logic: Any) -> list[tuple[int, ...]]:
    """The sizes (M, N, batch, K) of a file."""
    return list(_exact(logic))


def _exact(logic: Any) -> dict[tuple[int, ...], tuple[int, float]]:
    """Kernel and efficiency of each size. Leading dimensions are dropped, as in AMD's tool; the last of equal sizes counts."""
    rows = _get(logic, "ExactLogic") or []
    return {tuple(size[:4]): (int(index), float(efficiency)) for size, (index, efficiency) in rows}


def check_logic(logic: Any) -> Any:
    """Return library logic unchanged. Raises LogicError if it is cut off, or not library logic at all."""
    problem, solutions = _get(logic, "ProblemType"), _get(logic, "Solutions")
    if not isinstance(problem, dict) or not isinstance(solutions, list) or not all(isinstance(s, dict) for s in solutions):
        raise LogicError(f"equality: the file has no problem type or no kernels\n{_DAMAGED}")
    try:
        _exact(logic)
    except (TypeError, ValueError):
        raise LogicError(
            f"equality: the table of the file is not a list of [[M, N, batch, K], [kernel, efficiency]]\n{_DAMAGED}"
        ) from None
    return logic


def _place(solutions: list[dict[str, Any]], places: dict[Any, int], wanted: dict[str, Any]) -> int:
    """The index of this kernel in the list; it is added if it is missing."""
    at = places.setdefault(_frozen(wanted), len(solutions))
    if at == len(solutions):
        solutions.append(wanted)
    return at


def _frozen(solution: dict[str, Any]) -> Any:
    """A kernel as a key: equal for kernels that differ only in their number and name."""

    def freeze(value: Any) -> Any:
        if isinstance(value, dict):
            return frozenset((name, freeze(item)) for name, item in value.items())
        return tuple(map(freeze, value)) if isinstance(value, list) else value

    return freeze({name: value for name, value in solution.items() if name not in _NAMED})


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
        raise LogicError(
            f"equality: library logic is a list of 12 or a dict, not {_form(logic)}\n"
            "hint: name the folder 3_LibraryLogic of TensileLite, or an Equality folder of hipBLASLt"
        )
    return logic[PLACES[name]]


def _set(logic: Any, name: str, value: Any) -> None:
    if isinstance(logic, dict):
        logic[name] = value
    else:
        logic[PLACES[name]] = value


def _form(logic: Any) -> str:
    return f"a list of {len(logic)}" if isinstance(logic, list) else f"a {type(logic).__name__}"
