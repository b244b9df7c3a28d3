"""torch.compile: a pass over Inductor's graph that inserts tuned kernels for products of fixed shape."""

from __future__ import annotations

import functools
import hashlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .dispatcher import Dispatcher

# compiled code lives longer than the context it was compiled in, and finds its library by name
_DISPATCHERS: dict[str, Dispatcher] = {}
_lock = threading.RLock()  # several threads may begin and end the use of libraries
# our replacement of torch.compile: the function below it, and whether it has ended
_COMPILERS: dict[Any, tuple[Any, list[bool]]] = {}
_LIBRARY = torch.library.Library("lapwing", "FRAGMENT")  # the operator exists as long as this object
_LIBRARY.define("tuned_product(Tensor x, Tensor y, Tensor? bias, str library) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


def _tuned_product(x: Any, y: Any, bias: Any, library: str) -> Any:
    dispatcher = _DISPATCHERS.get(library)
    if dispatcher is None:
        return _mm(x, y) if bias is None else _addmm(bias, x, y)
    return dispatcher.matmul(_mm, x, y) if bias is None else dispatcher.addmm(_addmm, bias, x, y)


def _fake(x: Any, y: Any, bias: Any, library: str) -> Any:
    return x.new_empty(x.shape[0], y.shape[1])


_mm, _addmm = torch.ops.aten.mm.default, torch.ops.aten.addmm.default
_LIBRARY.impl("tuned_product", _tuned_product, "CompositeExplicitAutograd")
torch.library.register_fake("lapwing::tuned_product", _fake, lib=_LIBRARY)


def install(dispatcher: Dispatcher, digest: str) -> Callable[[], None]:
    """Add the pass after the existing ones, now or at the first torch.compile; return the function that removes it.

    Importing Inductor takes seconds, and a program that compiles nothing should not wait for it.
    """
    with _lock:
        return _install(dispatcher, digest) if "torch._inductor.config" in sys.modules else _install_later(dispatcher, digest)


def _install_later(dispatcher: Dispatcher, digest: str) -> Callable[[], None]:
    original = torch.compile
    undo: list[Callable[[], None]] = []
    ended: list[bool] = []

    @functools.wraps(original)
    def compile(*args: Any, **named: Any) -> Any:
        with _lock:
            if not undo and not ended:
                undo.append(_install(dispatcher, digest))
        return original(*args, **named)

    _COMPILERS[compile] = original, ended
    torch.compile = compile  # type: ignore[assignment]

    def remove() -> None:
        with _lock:
            ended.append(True)
            while _COMPILERS.get(torch.compile, (None, None))[1]:  # handles may be removed in any order
                torch.compile = _COMPILERS.pop(torch.compile)[0]
            while undo:
                undo.pop()()

    return remove


def _install(dispatcher: Dispatcher, digest: str) -> Callable[[], None]:
    """Does nothing if Inductor is not available."""
    try:
        import torch._inductor.config as config
        from torch._inductor.custom_graph_pass import CustomGraphPass
    except ImportError:
        return lambda: None
    before = config.post_grad_custom_post_pass
    earlier = tuple(before) if isinstance(before, (list, tuple)) else () if before is None else (before,)
    _DISPATCHERS[digest] = dispatcher

    class Pass(CustomGraphPass):  # type: ignore[misc]
        def __init__(self) -> None:
            # the pass below it, and whether it was removed while another was above it
            self.over, self.ended = before, False

        def __call__(self, graph: Any, *args: Any, **named: Any) -> None:
            for other in earlier:
                other(graph, *args, **named)
            if not self.ended:
                replace_products(graph, dispatcher, digest)

        def uuid(self) -> Any:
            """Distinguishes libraries in Inductor's cache on disk."""
            names = [getattr(other, "uuid", lambda: None)() for other in earlier]
            if any(name is None for name in names):
                return None
            source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
            return f"lapwing {digest} {source} {names} {self.ended}"

    ours = Pass()
    config.post_grad_custom_post_pass = ours

    def undo() -> None:
        with _lock:
            ours.ended = True
            while getattr(last := config.post_grad_custom_post_pass, "ended", False):
                config.post_grad_custom_post_pass = last.over  # type: ignore[union-attr]

    return undo


def replace_products(graph: Any, dispatcher: Dispatcher, digest: str) -> int:
    """Replace products that the library has, and return how many."""
    count = 0
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in (_mm, _addmm):
            continue
        if node.kwargs or len(node.args) != (2 if node.target is _mm else 3):
            continue
        *bias, x, y = node.args
        values = [getattr(a, "meta", {}).get("val") for a in (x, y, *bias)]
        if not all(isinstance(v, torch.Tensor) and _fixed(v) for v in values):
            continue
        if dispatcher.knows(*values):
            node.target = torch.ops.lapwing.tuned_product.default
            node.args = (x, y, bias[0] if bias else None, digest)
            count += 1
    return count


def _fixed(value: Any) -> bool:
    return all(isinstance(s, int) for s in (*value.shape, *value.stride()))
