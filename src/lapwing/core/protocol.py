"""What the operations need from each kind of array.

NumPy, PyTorch, JAX, TensorFlow and CuPy are modules in ``frameworks/`` that satisfy :class:`Framework`. Kinds of arrays that
are spread over many devices (``ShardedMatrix``, torch's ``DTensor``, JAX arrays with a ``NamedSharding``) are objects in
``distributed/fronts/`` that satisfy :class:`Front`. ``frameworks.entry(a, name)`` returns the one for an array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np

from .operation import Operation, Params
from .problem import Spec


class Framework(Protocol):
    """A library whose arrays lie on one device."""

    @property
    def sharded(self) -> bool:
        """False."""

    @property
    def Namespace(self) -> Any:
        """The array functions that derivatives and composed operations are written in."""

    @property
    def light(self) -> Any:
        """Products, norms and views by the library's own functions, with the array API standard's names and keywords."""

    def describe(self, a: Any, /) -> Spec:
        """Shape, dtype and device."""

    def shape_of(self, a: Any, /) -> tuple[Any, ...]: ...

    def dtype_of(self, a: Any, /) -> str: ...

    def direct(self, a: Any, /) -> bool:
        """Whether a small call may take the short way: ``results_direct`` and ``solve_direct``."""

    def traced(self, a: Any, /) -> bool:
        """Whether values cannot be read: jit, compile, graph mode, graph capture."""

    def sized(self, a: Any, /) -> bool:
        """Whether its sizes are known numbers, so that the native core can be asked about them."""

    def differentiates(self, a: Any, /) -> bool:
        """Whether derivatives with respect to it may be asked for."""

    def apply(
        self, operation: Operation, arrays: tuple[Any, ...], params: Params, engine: int, overwrite: bool, /
    ) -> tuple[Any, ...]:
        """Run the operation; its outputs."""

    def failed(self, info: Any, /) -> bool:
        """Whether any status is not zero; waits for the device."""

    def to_numpy(self, x: Any, /) -> np.ndarray:
        """A NumPy array; waits for the device."""

    def out_of_memory(self, error: Exception, /) -> bool: ...

    def register(self, kind: Any, take_apart: Any, put_together: Any, /) -> None:
        """Let objects of this class pass through the framework's transformations."""


class Front(Protocol):
    """A kind of array that is spread over many devices.

    ``function`` is a public function; ``function.request(spec, **options)`` checks the options and returns the Request. A
    front calls it in the step where all ranks agree, so that an error on one rank is raised on all.
    """

    @property
    def sharded(self) -> Literal[True]: ...

    def describe(self, a: Any, /) -> Spec: ...

    def call(self, function: Callable[..., Any], a: Any, b: Any = None, /, **options: Any) -> Any:
        """Agree, choose a backend, run it, and place the results."""

    def explain(self, function: Callable[..., Any], a: Any, b: Any, ordinary: Callable[..., Any], /, **options: Any) -> Any:
        """The backend that ``call`` would use, and its cost; asks no other process.

        ``ordinary(*arrays)`` explains arrays on one device.
        """


class Handle(Protocol):
    """A factored matrix, behind the public class ``Factor``.

    On one device it also has ``lu``, and ``about`` if ``repr`` shows more. A handle that passes through JAX also has
    ``framework``, ``take_apart`` and ``put_together``.
    """

    assume: str
    upper: bool

    @property
    def info(self) -> Any: ...

    @property
    def report(self) -> dict[str, Any]: ...

    @property
    def shape(self) -> tuple[Any, ...]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def l(self) -> Any: ...  # noqa: E743

    def solve(self, b: Any, /) -> Any: ...

    def inverse(self) -> Any: ...

    def slogdet(self) -> tuple[Any, Any]: ...

    def logdet(self) -> Any: ...

    def rcond(self) -> Any: ...
