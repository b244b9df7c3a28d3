"""A field of the solver: where its memory is, and the array over it, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.memory import GPU, HOST, Memory, capsule_of_memory
from .arrays import VIEWS, as_library, choose_library, jax_copy, memory_of, poison, private_copy, to_host


class Field:
    """One field during one step.

    ``field.array()`` is an array over the solver's own memory, in the array library of the run or in the one you name. Only JAX
    makes a copy (see below). ``numpy.asarray(field)`` works for host memory. After the step the solver may overwrite or free
    the memory, so every later use of the field raises RuntimeError: copy inside ``on_step`` what you need later.

    - NumPy: a view with the solver's strides; read-only unless the solver allows writing.
    - CuPy, torch: a view on the solver's device. These libraries have no read-only arrays: do not write.
    - JAX: **one copy** (on the same device) of the solver's memory. JAX arrays are immutable and JAX queues its work, so a view
      would change before JAX reads it, as soon as the solver continues. The copy is complete before the analysis runs.
      If the solver itself is written in JAX, its array is passed on as it is.
    """

    def __init__(
        self,
        name: str,
        source: Any = None,
        *,
        memory: Memory | None = None,
        stream: int = 0,
        writable: bool = False,
        library: str = "auto",
        debug: bool = False,
    ) -> None:
        self.name = name
        self.stream = stream
        self.writable = writable
        self._source = source  # a Python array, or None if the solver passed a pointer
        self._memory = memory
        self._library = library
        self._debug = debug
        self._views: dict[str, Any] = {}  # zero-copy arrays, usable as long as the memory is the same
        self._temporary: dict[str, Any] = {}  # copies of this step
        self._valid = True
        self._step = -1

    @classmethod
    def described(cls, name: str, array: tuple[Any, ...], **options: Any) -> Field:
        """From (pointer, shape, strides, code, bits, device_type, device_id, stream, writable), as the C library passes it."""
        pointer, shape, strides, code, bits, device_type, device_id, stream, writable = array
        memory = Memory.describe(name, pointer, shape, strides, code, bits, device_type, device_id, writable)
        return cls(name, memory=memory, stream=stream, writable=writable, **options)

    @property
    def memory(self) -> Memory:
        self._check()
        if self._memory is None:
            self._memory = memory_of(self.name, self._source, self.writable)
        return self._memory

    @property
    def shape(self) -> tuple[int, ...]:
        return self._memory.shape if self._memory is not None else tuple(self._source.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.memory.dtype

    @property
    def pointer(self) -> int:
        return self.memory.pointer

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return self.memory.strides

    @property
    def device(self) -> tuple[int, int]:
        """DLPack's device type and device number; (1, 0) is the CPU."""
        return self.memory.device

    def __repr__(self) -> str:
        if not self._valid:
            return f"Field({self.name!r}, after its step)"
        return f"Field({self.name!r}, shape={self.shape}, dtype={self.dtype}, on {self.memory.device_in_words})"

    def array(self, library: str | None = None) -> Any:
        """The array over the field's memory in ``library``, or in the one the run was started with."""
        if not self._valid:
            self._check()
        library = library or self._library
        if self._debug:
            return self._copy(library)
        array = self._views.get(library)
        if array is None:
            array = self._temporary.get(library)
        if array is None:
            array = self._make(library)
        return array

    def to_host(self) -> np.ndarray:
        """A copy of the field in a new NumPy array."""
        self._check()
        if self._source is not None or self.memory.device[0] in HOST:
            return np.array(to_host(self._source if self._source is not None else self.array("numpy")), copy=True)
        return to_host(self.array("auto"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        view = self.array("numpy")
        if (dtype is not None and np.dtype(dtype) != view.dtype) or copy:
            return np.array(view, dtype=dtype, copy=True)
        return view  # type: ignore[no-any-return]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._source is not None:
            return self._source.__cuda_array_interface__  # type: ignore[no-any-return]
        if self.memory.device[0] not in GPU:
            raise AttributeError(f"field {self.name!r} is on {self.memory.device_in_words}, not on a GPU")
        # the interface does not allow stream 0; 1 is the legacy default stream
        return self.memory.interface(True) | {"stream": self.stream or 1}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        if self._source is not None and hasattr(self._source, "__dlpack__"):
            return self._source.__dlpack__(**options)
        return capsule_of_memory(self.memory)

    def _check(self) -> None:
        if not self._valid:
            raise RuntimeError(
                f"field {self.name!r} was used after its step{f' ({self._step})' if self._step >= 0 else ''}:"
                " the solver may have overwritten it\nhint: copy what you need later inside on_step"
            )

    def _end(self, step: int) -> None:
        """Invalidate the field: its step is over."""
        self._valid = False
        self._step = step
        if self._temporary:
            if self._debug:
                for copy in self._temporary.values():
                    poison(copy)
            self._temporary = {}

    def _make(self, library: str) -> Any:
        if self._source is not None:
            view = self._views[library] = as_library(self.name, self._source, library, self.writable)
            return view
        memory = self.memory
        chosen = choose_library(memory) if library == "auto" else library
        if chosen == "jax":
            # not kept: at the next step the memory has other values
            copy = self._temporary[library] = jax_copy(self.name, memory, self.stream)
            return copy
        view = self._views[library] = VIEWS[chosen](self.name, memory)
        return view

    def _copy(self, library: str) -> Any:
        """A copy for debugging, overwritten with NaN when the step is over."""
        if library not in self._temporary:
            self._debug = False
            try:
                array = self.array(library)
            finally:
                self._debug = True
            self._temporary[library] = private_copy(array)
        return self._temporary[library]
