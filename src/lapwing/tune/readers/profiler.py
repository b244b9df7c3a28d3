"""torch.profiler's Chrome traces: matrix products with shapes, strides and types, as record_shapes=True writes them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from ..gemm import Gemm
from .sink import Sink
from .values import LARGEST, make, sums_of, type_name

# operators that are one product each, with the positions of both operands and of the bias or C; linear and matmul call these
PRODUCTS: dict[str, tuple[int, int, int | None]] = {
    "aten::mm": (0, 1, None),
    "aten::bmm": (0, 1, None),
    "aten::addmm": (1, 2, 0),
    "aten::baddbmm": (1, 2, 0),
    "aten::_addmm_activation": (1, 2, 0),
    "aten::_int_mm": (0, 1, None),
    "aten::_scaled_mm": (0, 1, 4),
}
# torch numbers its types; a trace gives an argument as this number
_SCALAR_TYPES = {"5": "f16", "6": "f32", "7": "f64", "15": "bf16"}
_SCALAR_TYPES |= {"23": "f8e5m2", "24": "f8e4m3", "25": "f8e5m2fnuz", "26": "f8e4m3fnuz"}
_GIVE_UP = 100  # broken events, after which the rest of the file is not read
_LONGEST = 2**24  # characters of one event, or before the first
_NEXT = re.compile(r"[\s,]*")


def read_trace(pieces: Iterable[str], sink: Sink) -> None:
    """Read a trace piece by piece: only the events of products are held, and each distinct one once."""
    known: dict[str, tuple[Gemm, str] | str] = {}
    products: list[tuple[float, float, tuple[str, str], int, str]] = []  # start, duration, thread, line, key
    for line, event in _events(pieces, sink):
        if not (isinstance(event, dict) and event.get("name") in PRODUCTS and event.get("ph", "X") == "X"):
            continue
        key = json.dumps([event["name"], event.get("args") if _has_shapes(event) else None], sort_keys=True)
        if key not in known:
            known[key] = _product(event)
        start, lasts = (float(v) if isinstance(v := event.get(field), (int, float)) else 0.0 for field in ("ts", "dur"))
        thread = sys.intern(str(event.get("pid"))), sys.intern(str(event.get("tid")))
        products.append((start, lasts, thread, line, key))
    ends: dict[tuple[str, str], float] = {}
    for start, lasts, thread, line, key in sorted(products, key=lambda event: (event[0], -event[1])):
        if start < ends.get(thread, -inf):
            continue  # a product that another product calls
        ends[thread] = start + lasts
        result = known[key]
        if isinstance(result, str):
            sink.bad(line, key, f"{json.loads(key)[0]}: {result}")
        else:
            sink.add("trace", result[0], 1, line, result[1])


def _product(event: Mapping[str, Any]) -> tuple[Gemm, str] | str:
    """The product of an event and a remark, or the reason why it cannot be used."""
    if not _has_shapes(event):
        return "has no shapes; record with record_shapes=True"
    try:
        return from_event(event["name"], event["args"])
    except (ValueError, TypeError, IndexError, KeyError) as error:
        return str(error) if isinstance(error, ValueError) else "its arguments are not those of a product"


def from_event(name: str, args: Mapping[str, Any]) -> tuple[Gemm, str]:
    """The product of one event, and a remark when torch copies an operand first."""
    left, right, extra = PRODUCTS[name]
    dims, strides, types = args["Input Dims"], args["Input Strides"], args["Input type"]
    batched = len(dims[left]) == 3
    if len(dims[left]) != len(dims[right]) or len(dims[left]) not in (2, 3):
        raise ValueError(f"shapes {dims[left]} and {dims[right]} are not those of a product")
    x, w = _Operand(dims[left], strides[left]), _Operand(dims[right], strides[right])
    rows, inner, columns = x.shape[0], x.shape[1], w.shape[1]
    if w.shape[0] != inner:
        raise ValueError(f"shapes {dims[left]} and {dims[right]} do not fit")
    a_type, b_type = type_name(types[right]), type_name(types[left])
    d_type = _output(name, args, b_type)
    values: dict[str, Any] = {
        "a_type": a_type,
        "b_type": b_type,
        "c_type": d_type,
        "d_type": d_type,
        "compute": sums_of(a_type),
        "lda": w.ld,
        "ldb": x.ld,
    }
    if batched:
        values |= {"batch": dims[left][0], "stride_a": w.step, "stride_b": x.step}
    values |= _epilogue(name, args, extra, columns)
    make(m=columns, n=rows, k=inner, batch=values.get("batch", 1))  # check the sizes first
    remarks = [f"{side} operand {o.remark}" for side, o in (("left", x), ("right", w)) if o.remark]
    return Gemm.row_major(rows, columns, inner, left=x.letter, right=w.letter, **values), ", ".join(remarks)


class _Operand:
    """How a product reads a matrix of torch: by rows ("N") or by columns ("T"); any other matrix is copied first."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int]) -> None:
        if any(type(n) is not int or not 0 <= n <= LARGEST for n in shape) or any(type(s) is not int for s in strides):
            raise ValueError(f"shape {list(shape)} is not one of a matrix")
        self.shape = list(shape[-2:])
        (rows, columns), (down, across) = self.shape, strides[-2:]
        self.remark = ""
        self.letter: Any = "N"
        self.step = strides[0] if len(shape) == 3 else 0
        # the order of these tests is torch's: it matters for a single row or column
        if down == 1 and across >= max(rows, 1):
            self.letter, self.ld = "T", across if columns > 1 else max(rows, 1)  # a single column has no step to the next
        elif across == 1 and down >= max(columns, 1):
            self.ld = down if rows > 1 else max(columns, 1)
        else:  # torch multiplies a packed copy
            self.ld, self.step = max(columns, 1), 0
            self.remark = "is expanded from fewer numbers" if 0 in (down, across) else "is copied first"
        if len(shape) == 3 and shape[0] > 1 and strides[0] == 0:
            self.remark = "is one matrix for the whole batch"
        self.step = max(self.step, 0)


def _epilogue(name: str, args: Mapping[str, Any], extra: int | None, columns: int) -> dict[str, Any]:
    """What is added to the product: nothing, a bias vector or a matrix C."""
    if extra is None:
        return {}
    dims, types, concrete = args["Input Dims"], args["Input type"], args.get("Concrete Inputs") or []
    if name == "aten::_scaled_mm":
        scaled: dict[str, Any] = {"scale_b": _scale(dims[2]), "scale_a": _scale(dims[3])}  # the right operand is A
        # the precision of the sums is part of the product: kernels differ in speed and in the last bits
        scaled["fast_accum"] = str(concrete[7:8]).lower().find("true") >= 0
        return scaled | ({"bias": type_name(types[4])} if len(dims) > 4 and dims[4] else {})
    beta, alpha = (_scalar(concrete, place, 1.0) for place in (3, 4))
    shape = [n for n in dims[extra] if n != 1]
    values: dict[str, Any] = {"alpha": alpha}
    if shape in ([columns], []) and beta == 1:
        values["bias"] = type_name(types[extra])
    else:
        values["beta"] = beta
    if name == "aten::_addmm_activation":
        values["activation"] = "gelu" if str(concrete[5:6]).lower().find("true") >= 0 else "relu"
    return values


def _scale(shape: Sequence[int]) -> str:
    if sum(n != 1 for n in shape) == 0:
        return "tensor"
    return "row" if sum(n != 1 for n in shape) == 1 else "block"


def _output(name: str, args: Mapping[str, Any], operand: str) -> str:
    if name == "aten::_int_mm":
        return "i32"
    if name == "aten::_scaled_mm":
        concrete = [str(x) for x in args.get("Concrete Inputs") or []]
        word = concrete[6] if len(concrete) > 6 else ""
        # a recording has the name of the type
        return type_name(word) if word.startswith("torch.") else _SCALAR_TYPES.get(word, operand)
    return operand


def _scalar(concrete: Sequence[Any], place: int, usual: float) -> float:
    try:
        return float(concrete[place])
    except (IndexError, ValueError, TypeError):
        return usual


def _has_shapes(event: Mapping[str, Any]) -> bool:
    args = event.get("args")
    return isinstance(args, dict) and all(
        isinstance(args.get(key), list) for key in ("Input Dims", "Input Strides", "Input type")
    )


def _events(pieces: Iterable[str], sink: Sink) -> Iterator[tuple[int, Any]]:
    """Line and value of each event. A trace that was cut off gives all events but its last."""
    source, text, line = iter(pieces), "", 1  # ``text`` is not parsed yet, and begins on ``line``

    def more() -> bool:
        nonlocal text
        piece = next(source, None)
        text += piece or ""
        return piece is not None

    def begin() -> int:
        """Where the list of events begins. It may be part of an object, after a long description of the devices."""
        named = text.find('"traceEvents"')
        return text.find("[", max(named, 0)) if named >= 0 or text.lstrip("\ufeff \t\r\n").startswith("[") else -1

    while (place := begin()) < 0 and len(text) < _LONGEST and more():
        pass
    place = (place if place >= 0 else text.find("[")) + 1
    if not place:
        sink.bad(1, text[:200], "is JSON, but has no traceEvents")
        return
    decode, broken, counted = json.JSONDecoder().raw_decode, 0, 0
    while True:
        place = _NEXT.match(text, place).end()  # type: ignore[union-attr]
        if place >= len(text):
            line, text, place, counted = line + text.count("\n", counted), "", 0, 0
            if more():
                continue
            sink.bad(line, "", "the trace is cut off")
            return
        if text[place] == "]":
            return
        line, counted = line + text.count("\n", counted, place), place
        try:
            event, place = decode(text, place)
            yield line, event
            continue
        except ValueError:
            if len(text) - place < _LONGEST:  # it may go on in the next piece
                text, place, counted = text[place:], 0, 0
                if more():
                    continue
        except RecursionError:
            pass
        broken += 1
        sink.bad(line, text[place : place + 200], "is not an event")
        if broken >= _GIVE_UP:
            return
        while (following := text.find("\n  {", place + 1)) < 0:  # where torch's next event begins
            line, text, place, counted = line + text.count("\n", counted, len(text) - 3), text[-3:], -1, 0
            if not more():
                return
        place = following
