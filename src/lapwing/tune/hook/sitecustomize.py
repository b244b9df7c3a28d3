"""Runs at the start of a recorded Python program, by PYTHONPATH, and counts the matrix products that torch does in it.

Nothing of lapwing is imported: the program's Python may be another one. Counts live in a file that is mapped into memory, so
they are there however the program ends, killed included. Forked and spawned processes have files of their own.
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

_SLOTS = 1 << 17  # different products of one process
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "_addmm_activation", "_int_mm", "_scaled_mm")


class _Counts:
    """A line of text for each product, and a number in memory that the operating system writes back."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.places: dict[tuple[Any, ...], int] = {}
        self.memory: Any = None
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
        while os.path.exists(self.path + ".counts"):  # a process with this number was here before
            number += 1
            self.path = os.path.join(self.folder, f"torch-{os.getpid()}-{number}")
        with open(self.path + ".counts", "w+b") as file:
            file.truncate(8 * _SLOTS)
            self.memory = mmap.mmap(file.fileno(), 8 * _SLOTS)


def _start(counts: _Counts) -> None:
    """torch has just been imported."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    watched = {}
    for name in _PRODUCTS:
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            watched[getattr(packet, overload)] = name

    def note(name: str, args: Any) -> None:
        dims: list[Any] = []
        strides: list[Any] = []
        types: list[str] = []
        concrete: list[str] = []
        device = ""
        for arg in args:
            if isinstance(arg, torch.Tensor):
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

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = watched.get(function)
            if name is not None:
                try:
                    note(name, _positional(function, args, kwargs))
                except Exception as error:  # the program goes on whatever happens here
                    print("lapwing: a product was not recorded:", error, file=sys.stderr)
            return function(*args, **kwargs)

    Recorder().__enter__()  # this thread, and those that its backward passes use

    def in_thread(*_: Any) -> None:
        sys.setprofile(None)
        Recorder().__enter__()

    threading.setprofile(in_thread)  # each new thread runs it once, at its start


def _positional(function: Any, args: Any, kwargs: Any) -> list[Any]:
    """All arguments but ``out``, in the order of the operation's schema."""
    found = list(args)
    for argument in function._schema.arguments[len(args) :]:
        if argument.name == "out":
            break
        value = kwargs.get(argument.name, argument.default_value)
        if argument.name == "out_dtype" and value is not None:
            value = str(value)
        found.append(value)
    return found


class _Watch:
    """Finds torch as it would be found anyway, and calls back once it is there."""

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
    # the program's own path is as it would be without us
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if folder and os.path.isdir(folder):
        # these are read when the libraries are loaded, later; two processes must not write into one file
        for variable, name in (
            ("CUBLAS_LOGDEST_DBG", f"cublas-{os.getpid()}.log"),
            ("PYTORCH_TUNABLEOP_UNTUNED_FILENAME", f"untuned-{os.getpid()}-.csv"),
        ):
            if os.environ.get(variable, "").startswith(folder):
                os.environ[variable] = os.path.join(folder, name)
        if os.environ.get("LAPWING_RECORD_TORCH") == "1":
            counts = _Counts(folder)
            sys.meta_path.insert(0, _Watch(lambda: _start(counts)))
    _next()


def _next() -> None:
    """The sitecustomize that Python would have run without this one."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize":  # under any other name somebody only looks at it
    _set_up()
