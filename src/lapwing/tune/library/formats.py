"""Write a library as a file that another program reads. Each export says what it left out, and why.

tunableop  results of torch's TunableOp: cuBLASLt algorithms, for torch >= 2.14
inductor   a lookup table for torch.compile: Triton tiles
vllm       JSON files by weight, as vLLM has them for its Triton kernels
hipblaslt  the override file of hipBLASLt: solution numbers, if the library has them
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..amd import override
from ..backends.cublaslt_api import FIELDS, solution_name
from ..files import write_atomic
from ..gemm import Gemm
from .entry import Entry
from .folder import Library

_TORCH = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_TUNABLE = {
    "f64": "double",
    "f32": "float",
    "f16": "Half",
    "bf16": "BFloat16",
    "f8e4m3": "Float8_e4m3fn",
    "f8e5m2": "Float8_e5m2",
}
_SCALAR = {"f32": "Float", "f16": "Half", "bf16": "BFloat16"}
_TILE = ("bm", "bn", "bk", "group", "warps", "stages")


class _LeftOut(Exception):
    """Why an entry cannot be written."""


@dataclass(frozen=True)
class Export:
    """The products that were written, and those that were left out."""

    paths: tuple[Path, ...]
    written: tuple[Gemm, ...]
    left_out: tuple[tuple[Gemm, str], ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = str(self.paths[0]) if len(self.paths) == 1 else f"{len(self.paths)} files" if self.paths else "nothing written"
        rows = [f"{where}: {len(self.written)} of {len(self.written) + len(self.left_out)} products"]
        rows += [f"left out: {gemm}: {reason}" for gemm, reason in self.left_out]
        return "\n".join([*rows, *(f"note: {note}" for note in self.notes)])


def export(
    library: str | Path | Library,
    format: Literal["tunableop", "inductor", "vllm", "hipblaslt"],
    output: str | Path,
    *,
    validators: Mapping[str, str] | None = None,
) -> Export:
    """Write a library as another program's file.

    Parameters
    ----------
    library : path or Library
        It is only read, so a library that was made elsewhere can be exported too.
    format : {"tunableop", "inductor", "vllm", "hipblaslt"}
    output : path
        A file; for "vllm" a folder. Nothing is created if no product can be written.
    validators : dict, optional
        For "tunableop": the values that the torch which reads the file compares, ``dict(torch.cuda.tunable.get_validators())``
        of that torch. By default only PT_VERSION, the version of torch that made the library.

    Returns
    -------
    Export
        Prints as a list of what was written and left out.
    """
    if format not in FORMATS:
        raise ValueError(f"export: format is {format!r}\nhint: use one of {', '.join(FORMATS)}")
    opened = library if isinstance(library, Library) else Library(library, check=False)
    options = {"validators": validators} if format == "tunableop" else {}
    return FORMATS[format](opened, Path(output), **options)


def _tunableop(library: Library, path: Path, *, validators: Mapping[str, str] | None = None) -> Export:
    notes = []
    if validators is None:
        version = next((e["torch"] for e in library.environment.values() if "torch" in e), "")
        # without the build, as in TORCH_VERSION
        validators = {"PT_VERSION": version.partition("+")[0]} if version else {}
        if not version:
            notes.append("the library does not say which torch made it; pass validators")
        elif tuple(map(int, re.findall(r"\d+", version)[:2])) < (2, 14):
            notes.append(f"made with torch {version}; TunableOp reads cuBLASLt solutions from 2.14 on, and checks the version")

    used: set[tuple[str, str]] = set()

    def row(entry: Entry) -> str:
        if entry.backend != "cublaslt":
            raise _LeftOut(f"it runs on {entry.backend}, and TunableOp knows only algorithms of cuBLASLt")
        missing = [name for name in FIELDS if name not in entry.config]
        if missing:
            raise _LeftOut(f"its configuration has no {missing[0]}")
        names = _tunable_names(entry.gemm)
        if names in used:
            raise _LeftOut("TunableOp's key cannot distinguish it from another entry: it has no use_fast_accum")
        used.add(names)
        return f"{','.join(names)},{solution_name(entry.config)},{entry.tuned_us / 1000:.6g}"

    rows, left_out = _each(library, row)
    head = "".join(f"Validator,{k},{v}\n" for k, v in validators.items())
    paths = (write_atomic(path, head + "".join(f"{r}\n" for r in rows.values())),) if rows else ()
    return Export(paths, tuple(rows), left_out, tuple(notes) if rows else ())


def _tunable_names(gemm: Gemm) -> tuple[str, str]:
    """TunableOp's names of the operation and of the product."""
    g = gemm
    if g.alpha != 1 or g.beta != 0 or g.activation != "none":
        raise _LeftOut("TunableOp's key has no alpha, beta or activation")
    if g.deterministic:
        raise _LeftOut("TunableOp's key does not say that the result must be deterministic")
    if g.ldc != g.ldd or g.a_type not in _TUNABLE or g.b_type not in _TUNABLE or g.d_type not in _TUNABLE:
        raise _LeftOut(f"TunableOp has no operation for {g.kind}")
    sizes, leading = f"{g.layout.lower()}_{g.m}_{g.n}_{g.k}", f"ld_{g.lda}_{g.ldb}_{g.ldc}"
    kind = "tf32" if g.compute == "tf32" else _TUNABLE[g.a_type]
    if g.scale_a != "none" or g.scale_b != "none":
        if g.batch != 1 or g.scale_a != g.scale_b or g.scale_a == "block":
            raise _LeftOut(f"TunableOp's key does not describe scales {g.scale_a} and {g.scale_b}")
        types = "_".join(_TUNABLE[t] for t in (g.a_type, g.b_type, g.d_type))
        bias = _SCALAR[g.bias] if g.bias else "None"
        return f"ScaledGemmTunableOp_{types}_{g.layout}", f"{sizes}_{leading}_rw_{int(g.scale_a == 'row')}_bias_{bias}"
    if len({g.a_type, g.b_type, g.c_type, g.d_type}) != 1 or g.a_type.startswith("f8"):
        raise _LeftOut("TunableOp has one type for all operands of a product without scales")
    if g.batch > 1:
        if g.bias:
            raise _LeftOut("TunableOp has no batched product with a bias")
        packed = {x: g.stored(x)[1] * getattr(g, f"ld{x}") for x in "abcd"}
        if any(getattr(g, f"stride_{x}") != packed[x] for x in "abcd"):
            raise _LeftOut("TunableOp's key has no strides between the matrices of a batch")
        return f"GemmStridedBatchedTunableOp_{kind}_{g.layout}", f"{sizes}_B_{g.batch}_{leading}"
    if g.bias and g.bias != g.a_type:
        raise _LeftOut(f"TunableOp's key does not describe a bias of {g.bias}")
    return f"Gemm{'AndBias' if g.bias else ''}TunableOp_{kind}_{g.layout}", f"{sizes}_{leading}"


def _inductor(library: Library, path: Path) -> Export:
    def row(entry: Entry) -> tuple[str, dict[str, Any]]:
        c, g = _plain_tile(entry), entry.gemm
        if g.batch != 1 or g.a_type not in _TORCH or len({g.a_type, g.b_type, g.d_type, g.c_type}) != 1:
            raise _LeftOut("the table is written for mm and addmm of one type without scales")
        if g.alpha != 1 or g.beta != 0 or g.activation != "none" or (g.bias and g.bias != g.d_type):
            raise _LeftOut("mm and addmm do not have its epilogue")
        if g.deterministic:
            raise _LeftOut("the key of the table does not say that the result must be deterministic")
        if min(int(c["bn"]), int(c["bm"]), int(c["bk"])) < 16:
            raise _LeftOut("Inductor's template needs tiles of at least 16")
        tile = {
            "template_id": "triton::mm",
            # tokens are rows for Inductor, and columns for BLAS
            "BLOCK_M": int(c["bn"]),
            "BLOCK_N": int(c["bm"]),
            "BLOCK_K": int(c["bk"]),
            "GROUP_M": int(c["group"]),
            "num_warps": int(c["warps"]),
            "num_stages": int(c["stages"]),
            "EVEN_K": g.k % int(c["bk"]) == 0,
            "USE_FAST_ACCUM": False,
            "ACC_TYPE": "tl.float64" if g.a_type == "f64" else "tl.float32",
            # no ALLOW_TF32: Inductor adds the setting of the program, and fails if the row has it too
        }
        return _inductor_key(g), tile

    rows, left_out = _each(library, row)
    table: dict[str, list[dict[str, Any]]] = {}
    for key, tile in rows.values():
        table.setdefault(key, []).append(tile)
    paths = (write_atomic(path, json.dumps(table, indent=1) + "\n"),) if rows else ()
    notes: tuple[str, ...] = (
        "use: torch._inductor.config.lookup_table.table = json.load(open(...)), and Inductor's LookupTableChoices",
        "Inductor's own template runs with these tiles, which is not the kernel that was timed",
    )
    fast = [g for g in rows if g.compute == "tf32"]
    if fast:
        notes += (
            f"{len(fast)} of them were tuned as tf32. Inductor's key does not say that: load the table only where "
            "torch.backends.cuda.matmul.allow_tf32 is set, or the tiles run in full float32 (right, but not what was timed). "
            "A product that was tuned both ways has both tiles, and Inductor times them against each other",
        )
    return Export(paths, tuple(rows), left_out, notes if rows else ())


def _inductor_key(gemm: Gemm) -> str:
    """The key of mm(x, y) or addmm(bias, x, y) in Inductor's table: types, sizes and strides of each operand."""
    g, dtype = gemm, f"torch.{_TORCH[gemm.a_type]}"
    x = ([g.n, g.k], [g.ldb, 1] if g.trans_b == "N" else [1, g.ldb])
    y = ([g.k, g.m], [g.lda, 1] if g.trans_a == "N" else [1, g.lda])
    operands = ([([g.n, g.m], [0, 1])] if g.bias else []) + [x, y]
    nodes = ", ".join(f"({dtype}, {size}, {stride})" for size, stride in operands)
    scalars = "+alpha=1&beta=1" if g.bias else ""
    return f"({nodes}){scalars}+{'addmm' if g.bias else 'mm'}"


def _vllm(library: Library, folder: Path) -> Export:
    def row(entry: Entry) -> tuple[str, str, dict[str, int]]:
        c, g = _plain_tile(entry), entry.gemm
        if g.layout != "TN" or not g.packed or g.batch != 1 or g.bias or g.activation != "none" or g.beta or g.alpha != 1:
            raise _LeftOut("vLLM's files are for packed x w^T without an epilogue")
        if g.deterministic:
            raise _LeftOut("vLLM's files do not say that the result must be deterministic")
        device = library.environment[entry.backend].get("device", "unknown").replace(" ", "_")
        kind = {"f8e4m3": "fp8_w8a8", "f8e5m2": "fp8_e5m2_w8a8"}.get(g.a_type, _TORCH.get(g.a_type, g.a_type))
        name = f"N={g.m},K={g.k},device_name={device},dtype={kind}.json"
        tile = {"BLOCK_SIZE_M": c["bn"], "BLOCK_SIZE_N": c["bm"], "BLOCK_SIZE_K": c["bk"], "GROUP_SIZE_M": c["group"]}
        numbers = tile | {"num_warps": c["warps"], "num_stages": c["stages"]}
        return re.sub(r"[^\w=,.-]", "_", name), str(g.n), {k: int(v) for k, v in numbers.items()}

    rows, left_out = _each(library, row)
    files: dict[str, dict[str, Any]] = {}
    for gemm, (name, tokens, tile) in list(rows.items()):
        if tokens in files.setdefault(name, {}):
            del rows[gemm]
            left_out = (
                *left_out,
                (gemm, "vLLM's file cannot distinguish it from another entry, with another result type or other scales"),
            )
        else:
            files[name][tokens] = tile
    paths: list[Path] = []
    for name, table in sorted(files.items()):
        ordered = {tokens: table[tokens] for tokens in sorted(table, key=int)}
        paths.append(write_atomic(folder / name, json.dumps(ordered, indent=4) + "\n"))
    notes = ("vLLM uses the nearest number of tokens in the file, however far away; lapwing stays where it was validated",)
    return Export(tuple(paths), tuple(rows), left_out, notes if paths else ())


def _hipblaslt(library: Library, path: Path) -> Export:
    def row(entry: Entry) -> int:
        number = entry.config.get("solution_index")
        if entry.backend != "hipblaslt" or not isinstance(number, int):
            raise _LeftOut(f"it runs on {entry.backend}, and the file has only solution numbers of hipBLASLt")
        if entry.gemm.deterministic:
            raise _LeftOut("the file does not say that the result must be deterministic")
        return number

    rows, left_out = _each(library, row)
    written = override.write(rows, path)
    note = "solution numbers are valid for one release of hipBLASLt and one device; not run on AMD hardware"
    some = bool(written.written)
    return Export((path,) if some else (), written.written, (*left_out, *written.left_out), (note,) if some else ())


def _plain_tile(entry: Entry) -> Mapping[str, int | str]:
    """The tile of a Triton kernel, if other Triton kernels have the same parameters."""
    c = entry.config
    if entry.backend != "triton":
        raise _LeftOut(f"it runs on {entry.backend}, and the file has only tiles of Triton")
    if c.get("template", "tile") != "tile" or c.get("split", 1) != 1 or c.get("reduce", "none") != "none":
        raise _LeftOut("it splits the inner dimension or streams, which the kernels of that program do not")
    if c.get("swap", 0):
        raise _LeftOut("it swaps the operands, which the kernels of that program do not")
    missing = [name for name in _TILE if name not in c]
    if missing:
        raise _LeftOut(f"its configuration has no {missing[0]}")
    return c


def _each(library: Library, row: Callable[[Entry], Any]) -> tuple[dict[Gemm, Any], tuple[tuple[Gemm, str], ...]]:
    rows: dict[Gemm, Any] = {}
    left_out: list[tuple[Gemm, str]] = []

    def order(e: Entry) -> tuple[Any, ...]:
        return e.gemm.kind, e.gemm.m, e.gemm.k, e.gemm.n, e.gemm.fast_accum, e.gemm.key

    for entry in sorted(library.entries.values(), key=order):
        try:
            rows[entry.gemm] = row(entry)
        except _LeftOut as why:
            left_out.append((entry.gemm, str(why)))
    return rows, tuple(left_out)


FORMATS: dict[str, Callable[..., Export]] = {
    "tunableop": _tunableop,
    "inductor": _inductor,
    "vllm": _vllm,
    "hipblaslt": _hipblaslt,
}
