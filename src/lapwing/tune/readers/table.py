"""Tables with a heading (ours, hipblaslt-bench's, a spreadsheet's) and products written by hand: "16x6144x4096 bf16 TN"."""

from __future__ import annotations

import csv
import re

from ..gemm import TYPES, Gemm
from .sink import LineReader, Sink
from .values import fold, product, type_name

_SIZES = re.compile(r"(?<![\d.])\d[\d.]*\s*[x×*]\s*[\d.]+\s*[x×*]\s*[\d.]+", re.IGNORECASE)
_LETTERS = {letters: name for name, (_, letters) in TYPES.items()}
_LETTER = re.compile("|".join(sorted(_LETTERS, key=len, reverse=True)))
_KIND = re.compile(r"((?:F8N|B8N|F8|B8|F6|B6|F4|I8|[DSXHBICZ]){3,4})_([NTC]{2})")


class TableReader(LineReader):
    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.heading: list[str] = []
        self.comma = ","

    def take(self, number: int, line: str) -> bool:
        text = line.strip()
        if self._is_heading(text):
            return True
        if self.heading and self.comma in text:
            self._row(number, text)
            return True
        if shape_like(text):
            for part in filter(None, (part.strip() for part in re.split(r"[;\n]", text))):
                gemm, count, remark = shape(part)
                self.sink.add("table", gemm, count, number, remark)
            return True
        return False

    def _is_heading(self, text: str) -> bool:
        for comma in (",", ";", "\t"):
            # hipblaslt-bench puts "[0]:" before its heading
            names = [fold(re.sub(r"^\[\d+\]:", "", cell)) for cell in text[:4096].split(comma)]
            if {"m", "n", "k"} <= set(names):
                self.heading, self.comma = names, comma
                return True
        return False

    def _row(self, number: int, text: str) -> None:
        try:
            cells = next(csv.reader([text], delimiter=self.comma, skipinitialspace=True))
            if len(cells) < 3:
                raise ValueError("has too few cells")
            if len(cells) > len(self.heading) and any(cell.strip() for cell in cells[len(self.heading) :]):
                raise ValueError(f"has {len(cells)} cells, but the heading has {len(self.heading)}")
            fields = dict(zip(self.heading, cells, strict=False))
            gemm, count, remark = product(fields)
            named = f"{fields.get('gcnarchname', '')} {fields.get('architecture', '')}".split()
            self.sink.architectures |= {word.partition(":")[0] for word in named if word.startswith("gfx")}
            self.sink.add("table", gemm, count or 1, number, remark)
        except (ValueError, csv.Error) as error:
            self.sink.bad(number, text, str(error))


def shape_like(text: str) -> bool:
    return _SIZES.search(text[:4096]) is not None


def shape(text: str) -> tuple[Gemm, int, str]:
    """Parse one product in words.

    It is ``MxNxK``, with sizes as in BLAS (column-major, as in logs), followed in any order by a type (``bf16``), a layout
    (``TN``), ``name=value`` for any other field of a product, and ``count=``. With ``linear`` instead of a layout the sizes are
    those of a framework: y (M, N) = x (M, K) w^T, w (N, K). The text that we print for a product is understood too.
    """
    match = _SIZES.search(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} has no sizes such as 16x6144x4096")
    m, n, k = re.split(r"\s*[x×*]\s*", match[0].lower())
    fields: dict[str, str] = {"m": m, "n": n, "k": k}
    rest = f"{text[: match.start()]} {text[match.end() :]}".replace(",", " ").split()
    framework = ""
    words = iter(rest)
    for word in words:
        name, equals, value = word.partition("=")
        kind = _KIND.fullmatch(word)
        if equals:
            fields[fold(name)] = value
        elif kind:
            fields |= _kind(kind[1], kind[2])
        elif word.lower() in ("linear", "matmul"):
            framework = word.lower()
        elif re.fullmatch("[NTCntc]{2}", word):
            fields["layout"] = word
        elif re.fullmatch(r"x\d+", word):
            fields["batch"] = word[1:]
        elif word == "+bias":
            fields["bias"] = next(words, "")
        elif word in ("relu", "gelu", "swish"):
            fields["activation"] = word
        elif word == "fast_accum":
            fields["fastaccum"] = "1"
        elif word not in ("padded", "tf32", "xf32"):
            try:
                type_name(word)
            except ValueError:
                raise ValueError(
                    f"{word[:40]!r} is neither a type (bf16, f16, f32, ...) nor a layout (NN, NT, TN, TT, linear, matmul)"
                ) from None
            fields["dtype"] = word
        elif word != "padded":
            fields["dtype"] = word
    if framework:
        if "layout" in fields:
            raise ValueError(f"{framework} implies a layout; leave {fields['layout']} out")
        fields |= {"m": fields["n"], "n": fields["m"], "layout": "TN" if framework == "linear" else "NN"}
    unknown = set(fields) - _FIELDS
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))[:60]} is not a field of a product")
    gemm, count, remark = product(fields)
    return gemm, count or 1, remark


def _kind(letters: str, layout: str) -> dict[str, str]:
    types = [_LETTERS[part] for part in _LETTER.findall(letters)]
    if len(types) == 3:
        types.insert(1, types[0])
    a, b, d, compute = types
    return {"atype": a, "btype": b, "ctype": d, "dtype": d, "compute": compute, "layout": layout}


_FIELDS = {fold(name) for name in Gemm.__dataclass_fields__} | {
    *("batchcount", "count", "calls", "callcount", "layout", "dtype", "type", "out", "transa", "transb"),
    *("activationtype", "biasvector", "biastype", "computetype"),
}
