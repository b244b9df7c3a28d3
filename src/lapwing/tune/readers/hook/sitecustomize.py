"""Runs at the start of a recorded Python program, found by PYTHONPATH, and counts the matrix products that torch computes.

Nothing of lapwing is imported: the program may use another Python. The counts are in a file that is mapped into memory, so they
survive however the program ends, even when it is killed. Forked and spawned processes have files of their own.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import os
import struct
import sys
import threading
from typing import Any

_SLOTS = 1 << 17  # different products that one process can record
_PRODUCTS = ("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "_addmm_activation", "_int_mm", "_scaled_mm")


class _Counts:
    """One line of text for each product, and its count in memory that the operating system writes back."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.places: dict[tuple[Any, ...], int] = {}
        self.memory: Any = None
        self.library: Any = None
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self.lock = threading.Lock()
        self.places = {}
        self.memory = None

    def add(self, product: tuple[Any, ...]) -> None:
        with self.lock:
            place = self.places.get(product)
            if place is None:
                place = self._name(product)
            if place >= 0:
                (count,) = struct.unpack_from("<q", self.memory, 8 * place)
                struct.pack_into("<q", self.memory, 8 * place, count + 1)

    def _name(self, product: tuple[Any, ...]) -> int:
        if self.memory is None:
            self._open()
        place = len(self.places) if len(self.places) < _SLOTS else -1
        self.places[product] = place
        if place >= 0:
            name, dims, strides, types, concrete = product
            args = {"Input Dims": dims, "Input Strides": strides, "Input type": types, "Concrete Inputs": concrete}
            line = json.dumps({"name": "aten::" + name[0], "device": name[1], "args": args}) + "\n"
            with open(self.path + ".products", "a") as file:
                file.write(line)
        return place

    def _open(self) -> None:
        self.path = os.path.join(self.folder, f"torch-{os.getpid()}")
        number = 0
        while os.path.exists(self.path + ".counts"):  # an earlier process had the same number
            number += 1
            self.path = os.path.join(self.folder, f"torch-{os.getpid()}-{number}")
        with open(self.path + ".counts", "w+b") as file:
            file.truncate(8 * _SLOTS)
            self.memory = mmap.mmap(file.fileno(), 8 * _SLOTS)


def _start(counts: _Counts) -> None:
    """Count every product from now on. torch has just been imported."""
    import torch

    _mark(counts.folder, "torch")
    # torch passes this key on the way to the kernel of every device, below autograd and above the kernels: on all threads,
    # in backward passes, in inference mode and in compiled code. Other operators are not touched, and cost nothing.
    key = torch._C.DispatchKey.BackendSelect
    library = torch.library.Library("aten", "IMPL")
    here = threading.local()

    def watch(name: str, operator: Any) -> Any:
        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            below = keys.remove(key)
            if getattr(here, "inside", False):  # a product that is part of another, as of a scaled one on a CPU
                return operator.redispatch(below, *args, **kwargs)
            try:
                note(name, _positional(operator, args, kwargs))
            except Exception as error:  # the program continues whatever happens here
                print("lapwing: a product was not recorded:", error, file=sys.stderr)
            here.inside = True
            try:
                return operator.redispatch(below, *args, **kwargs)
            finally:
                here.inside = False

        return kernel

    def note(name: str, args: Any) -> None:
        dims: list[Any] = []
        strides: list[Any] = []
        types: list[str] = []
        concrete: list[str] = []
        device = ""
        for arg in args:
            if isinstance(arg, torch.Tensor):
                if type(arg) not in (torch.Tensor, torch.nn.Parameter) or arg.device.type == "meta":
                    return  # a compiler or a tracer asks for shapes; nothing is computed
                dims.append(tuple(arg.shape))
                strides.append(tuple(arg.stride()))
                types.append(str(arg.dtype))
                concrete.append("")
                device = device or arg.device.type
            else:
                dims.append(())
                strides.append(())
                types.append("")
                concrete.append("" if arg is None else str(arg))
        counts.add(((name, device), tuple(dims), tuple(strides), tuple(types), tuple(concrete)))

    for name in _PRODUCTS:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            full = name if overload == "default" else f"{name}.{overload}"
            library.impl(full, watch(name.rstrip("_"), getattr(packet, overload)), key.name, with_keyset=True)
    counts.library = library  # the registrations end with it


def _positional(function: Any, args: Any, kwargs: Any) -> list[Any]:
    """All arguments except ``out``, in the order of the operator's schema."""
    values = list(args)
    for argument in function._schema.arguments[len(args) :]:
        if argument.name == "out":
            break
        value = kwargs.get(argument.name, argument.default_value)
        if argument.name == "out_dtype" and value is not None:
            value = str(value)
        values.append(value)
    return values


class _Watch:
    """Finds torch where Python would find it, and calls back after it is imported."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or path is not None:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return spec
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            try:
                self.call()
            except Exception as error:
                print("lapwing: torch's products are not recorded:", error, file=sys.stderr)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _set_up() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.environ.get("LAPWING_RECORD", "")
    # the program must see the path that it would have without us
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if folder and os.path.isdir(folder):
        # the libraries read these when they are loaded, later; two processes must not write into one file
        for variable, name in (
            ("CUBLAS_LOGDEST_DBG", f"cublas-{os.getpid()}.log"),
            ("PYTORCH_TUNABLEOP_UNTUNED_FILENAME", f"untuned-{os.getpid()}-.csv"),
        ):
            if os.environ.get(variable, "").startswith(folder):
                os.environ[variable] = os.path.join(folder, name)
        if os.environ.get("LAPWING_RECORD_TORCH") == "1":
            _mark(folder, "python")
            counts = _Counts(folder)
            sys.meta_path.insert(0, _Watch(lambda: _start(counts)))
    _next()


def _mark(folder: str, what: str) -> None:
    """Note how far the recording came, to explain an empty one."""
    with open(os.path.join(folder, f"started.{what}"), "a"):
        pass


def _next() -> None:
    """Run the sitecustomize that Python would have run without this one."""
    this = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this


if __name__ == "sitecustomize":  # under any other name it is imported only to be looked at
    _set_up()
