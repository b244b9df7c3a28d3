"""Merge libraries from the same environment, with a ledger of what was kept and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..gemm import Gemm
from .entry import Entry
from .folder import EnvironmentMismatch, Environments, Library, differences, write

POLICIES = ("winner", "force", "newest")
# a winner must be this much faster: two runs of the same kernel differ by as much
_TIE = 1.02
_WORDS = {"O": "kept", "!": "replaced", "X": "refused", "-": "dropped"}


@dataclass(frozen=True)
class LedgerLine:
    """What happened to one entry: ``mark`` is O (kept), ! (replaced another), X (refused) or - (dropped)."""

    mark: Literal["O", "!", "X", "-"]
    what: str  # the product, or the name of a file that could not be read
    source: str
    reason: str
    gemm: Gemm | None = None

    def __str__(self) -> str:
        return f"[{self.mark}] {_WORDS[self.mark]:8} {self.what} of {self.source}: {self.reason}"


def merge(
    sources: Sequence[str | Path], out: str | Path, policy: Literal["winner", "force", "newest"] = "winner"
) -> tuple[LedgerLine, ...]:
    """Merge libraries into one folder.

    Parameters
    ----------
    sources : sequence of path
        Libraries; the first is the base. All must come from the same environment: results of different devices or versions
        are refused.
    out : path
        The folder of the result. It may be one of the sources.
    policy : {"winner", "force", "newest"}
        Which entry to keep when several libraries have the product. "winner": the larger gain over the default (the earlier
        source if they differ by less than 2 %); "force": the later source; "newest": the later measurement.

    Returns
    -------
    tuple of LedgerLine
        What happened to each entry, and why; ``print(*ledger, sep="\\n")``.
    """
    if policy not in POLICIES:
        raise ValueError(f"merge: policy is {policy!r}\nhint: use one of {', '.join(POLICIES)}")
    if not sources:
        raise ValueError("merge: no library was given\nhint: name at least one folder")
    target = Path(out)
    libraries = [Library(s, check=False) for s in sources]
    if (target / "manifest.json").exists() and target.resolve() not in {lib.path.resolve() for lib in libraries}:
        raise FileExistsError(f"merge: {target} already holds a library\nhint: name it as the first source, or another folder")
    environment = _one_environment(libraries)
    chosen: dict[str, tuple[Entry, str]] = {}
    ledger: list[LedgerLine] = []
    for library in libraries:
        source = str(library.path)
        ledger += [LedgerLine("X", name, source, why) for name, why in library.bad.items()]
        for key, entry in library.entries.items():
            if key not in chosen:
                chosen[key] = entry, source
                continue
            old, old_source = chosen[key]
            wins, reason = _judge(old, entry, policy)
            if dict(old.config) == dict(entry.config) and old.backend == entry.backend:
                both = tuple(sorted({*old.buckets, *entry.buckets}))
                old, entry = replace(old, buckets=both), replace(entry, buckets=both)
            if wins:
                chosen[key] = entry, source
                ledger.append(LedgerLine("!", _words(entry), source, f"{reason}; it was that of {old_source}", entry.gemm))
            else:
                chosen[key] = old, old_source
                ledger.append(LedgerLine("-", _words(entry), source, reason, entry.gemm))
    replaced = {(line.gemm.key, line.source) for line in ledger if line.mark == "!" and line.gemm}
    for key, (entry, source) in chosen.items():
        if (key, source) not in replaced:
            others = sum(key in lib.entries for lib in libraries) - 1
            reason = "no other has it" if not others else f"it stays, and {others} other{'s go' if others > 1 else ' goes'}"
            ledger.append(LedgerLine("O", _words(entry), source, reason, entry.gemm))
    write(target, [e for e, _ in chosen.values()], environment, {"made": "merge", "policy": policy, "sources": len(libraries)})
    return tuple(ledger)


def _one_environment(libraries: Sequence[Library]) -> Environments:
    """The environments of all backends. A backend that several libraries have must be the same in every field."""
    whole: dict[str, Mapping[str, str]] = {}
    of: dict[str, Path] = {}
    for library in libraries:
        for name, there in library.environment.items():
            here = whole.setdefault(name, there)
            of.setdefault(name, library.path)
            if rows := differences(name, here, there):
                raise EnvironmentMismatch(library.path, rows, of[name])
    # all backends run on one machine, so the fields that describe it must agree too
    for name, fields_of in whole.items():
        for other, others in whole.items():
            shared = {*fields_of} & {*others} & _MACHINE
            if rows := differences(f"{name} and {other}", *({f: x[f] for f in shared} for x in (fields_of, others))):
                raise EnvironmentMismatch(of[other], rows, of[name])
    return {name: dict(fields) for name, fields in whole.items()}


_MACHINE = {"device", "device name", "device_name", "driver", "sm count", "sm_count", "torch", "cpu"}


def _judge(old: Entry, new: Entry, policy: str) -> tuple[bool, str]:
    if policy == "force":
        return True, "the later library wins"
    if policy == "newest":
        if new.made > old.made:
            return True, f"measured on {new.made}, the other on {old.made or 'an unknown day'}"
        return False, f"measured on {new.made or 'an unknown day'}, the other on {old.made or 'an unknown day'}"
    if new.ratio > old.ratio * _TIE:
        return True, f"{new.ratio:.3f}x over the default, the other {old.ratio:.3f}x"
    tie = ", a tie" if new.ratio * _TIE > old.ratio else ""
    return False, f"{new.ratio:.3f}x over the default, the other {old.ratio:.3f}x{tie}"


def _words(entry: Entry) -> str:
    return f"{entry.name or entry.gemm.key} ({entry.gemm})"
