"""Kernel packs: GPU kernels compiled ahead, one file for each architecture. native/gpu/kernel_pack.cc reads them.

A file holds a header, an index in the order of the keys, a table of chunks, a description in JSON, and the chunks. A chunk is
a few kernels, compressed together because kernels of one source are much alike. The key of a kernel is a hash of its source and
its options, so a pack never gives a kernel of another version of lapwing.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .._version import __version__
from .native import native

_MAGIC = b"LWPACK01"
_HEADER = struct.Struct("<8sIIIIQ")
_ENTRY = struct.Struct("<QQQIIII")
_CHUNK = struct.Struct("<QII")
_KERNELS_PER_CHUNK = 8  # more compress little better, and to read one kernel the whole chunk is decoded

FOLDER = Path(__file__).parents[1] / "kernels" / "packs"
_PACKAGE = "lapwing_kernels"  # a package of its own may carry the packs instead


@dataclass(frozen=True)
class Kernel:
    source: str
    options: str
    key: str  # in hexadecimal digits, from the native core
    binary: bytes


@dataclass(frozen=True)
class Pack:
    """What a pack says about itself."""

    path: Path
    architecture: int
    compiler: str
    lapwing: str
    kernels: tuple[tuple[str, str, str], ...]  # source, options, key

    @property
    def size(self) -> int:
        return self.path.stat().st_size


class PackError(ValueError):
    """A file that is no kernel pack, or a damaged one."""


def places() -> str:
    """Where the native core looks for packs: LAPWING_KERNELS first; empty turns them all off."""
    chosen = os.environ.get("LAPWING_KERNELS")
    if chosen == "":
        return ""
    folders = [chosen] if chosen else []
    folders.append(str(FOLDER))
    package = find_spec(_PACKAGE)
    folders += package.submodule_search_locations or [] if package else []
    return ":".join(folders)


def in_use() -> list[tuple[str, int, int, str]]:
    """The packs for the GPUs here: path, architecture, number of kernels, and what is wrong with it or ""."""
    if native is None:
        return []
    capabilities = {capability for _, capability, _ in native.gpus()}
    packs = {pack for capability in capabilities for pack in native.kernel_packs(capability)}
    return sorted((path, *sizes, problem or _other_version(path)) for path, *sizes, problem in packs)


@cache
def _other_version(path: str) -> str:
    """What is wrong with a pack whose keys fit no kernel of this lapwing, or ""."""
    try:
        version = read(Path(path)).lapwing
    except (OSError, PackError) as error:
        return str(error)
    return "" if version == __version__ else f"its kernels are of lapwing {version}, and this is {__version__}"


def files() -> list[Path]:
    """Every pack in these places."""
    packs: list[Path] = []
    for path in map(Path, filter(None, places().split(":"))):
        packs += sorted(path.glob("sm_*.pack")) if path.is_dir() else [path] if path.exists() else []
    return packs


def write(path: Path, architecture: int, kernels: Iterable[Kernel], **about: Any) -> None:
    """Write a pack in place of the one at ``path``, all at once."""
    assert native is not None
    # alike kernels side by side compress best
    ordered = sorted(kernels, key=lambda k: (k.source, k.options))
    groups = [ordered[i : i + _KERNELS_PER_CHUNK] for i in range(0, len(ordered), _KERNELS_PER_CHUNK)]
    stored = [_compressed(b"".join(kernel.binary for kernel in group)) for group in groups]
    text = zlib.compress(json.dumps(about | {"kernels": [(k.source, k.options, k.key) for k in ordered]}).encode(), 9)
    entries, chunks = [], []
    offset = _HEADER.size + _ENTRY.size * len(ordered) + _CHUNK.size * len(groups) + len(text)
    for number, (group, data) in enumerate(zip(groups, stored, strict=True)):
        start = 0
        for kernel in group:
            key = (int(kernel.key[:16], 16), int(kernel.key[16:], 16))
            entries.append((*key, native.checksum(kernel.binary), number, start, len(kernel.binary), 0))
            start += len(kernel.binary)
        chunks.append(_CHUNK.pack(offset, len(data), start))
        offset += len(data)
    index = b"".join(_ENTRY.pack(*entry) for entry in sorted(entries)) + b"".join(chunks)
    header = _HEADER.pack(_MAGIC, architecture, len(ordered), len(groups), len(text), native.checksum(index))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        unfinished.write_bytes(b"".join([header, index, text, *stored]))
        unfinished.chmod(0o644)  # not writable by others, or it is not used
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _compressed(data: bytes) -> bytes:
    import lzma  # a part of Python that some builds lack, and that only packs need

    return lzma.compress(data, format=lzma.FORMAT_RAW, filters=_filters())


def _filters() -> list[dict[str, int]]:
    import lzma

    # the same as in native/gpu/lzma.h
    return [{"id": lzma.FILTER_LZMA1, "preset": 6, "lc": 0, "lp": 2, "pb": 2, "dict_size": 1 << 22}]


def read(path: Path) -> Pack:
    """What the pack says about itself."""
    return _open(path)[0]


def kernels_of(path: Path) -> Iterator[Kernel]:
    """The kernels of a pack, with their binaries; those that are damaged are left out."""
    assert native is not None
    import lzma

    pack, entries, chunks = _open(path)
    names = {key: (source, options) for source, options, key in pack.kernels}
    data = path.read_bytes()
    for number, (offset, stored, _) in enumerate(chunks):
        try:
            binaries = lzma.decompress(data[offset : offset + stored], format=lzma.FORMAT_RAW, filters=_filters())
        except lzma.LZMAError:
            continue
        for low, high, checksum, chunk, start, size, _ in entries:
            binary = binaries[start : start + size]
            key = f"{low:016x}{high:016x}"
            if chunk == number and key in names and native.checksum(binary) == checksum:
                yield Kernel(*names[key], key, binary)


def _open(path: Path) -> tuple[Pack, list[tuple[int, ...]], list[tuple[int, ...]]]:
    assert native is not None
    try:
        with path.open("rb") as file:
            magic, architecture, kernels, chunks, text, checksum = _HEADER.unpack(file.read(_HEADER.size))
            if magic != _MAGIC:
                raise PackError(f"{path} is not a kernel pack")
            index = file.read(_ENTRY.size * kernels + _CHUNK.size * chunks)
            if native.checksum(index) != checksum:
                raise PackError(f"{path} is damaged")
            about = json.loads(zlib.decompress(file.read(text)))
    except (struct.error, zlib.error, json.JSONDecodeError) as error:
        raise PackError(f"{path} is not a kernel pack, or is damaged") from error
    end = _ENTRY.size * kernels
    listed = tuple((source, options, key) for source, options, key in about["kernels"])
    pack = Pack(path, architecture, about["compiler"], about["lapwing"], listed)
    return pack, list(_ENTRY.iter_unpack(index[:end])), list(_CHUNK.iter_unpack(index[end:]))
