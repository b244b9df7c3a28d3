"""A built product as a function on torch tensors, with as little Python overhead as possible."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ...gemm import Gemm

Seen = dict[int, tuple[Any, int]]  # weights by identity: a weak reference, and torch's count of writes


def unwritten(seen: Seen, w: Any) -> bool:
    """Whether this tensor, or the one it is a view of, was seen before and not written since, by torch's own count."""
    owner = w if w._base is None else w._base
    if owner.is_inference():
        return False
    known, version = seen.get(id(owner)), owner._version
    if known is not None and known[0]() is owner and known[1] == version:
        return True
    seen[id(owner)] = weakref.ref(owner), version
    return False


def on_device(device: int) -> AbstractContextManager[Any]:
    """Make kernels and handles in the context of their own device, whichever device is current."""
    import torch

    return torch.cuda.device(device) if torch.cuda.is_available() else nullcontext()


def torch_callable(bound: Any, gemm: Gemm, device: int) -> Callable[..., Any]:
    """``f(x, w, bias=None, out=None, scale_x=None, scale_w=None)``: x and w as in ``F.linear``, for the layout of ``gemm``.

    The caller has checked shapes, types and strides. If a pointer is not aligned to 16 bytes, torch computes the product. A
    kernel that reads weights ahead does so only if the weight was not written since the last call, by torch's own count. A
    weight without such a count (made in inference mode) is never read ahead.
    """
    import torch

    from ..cuda_operands import Operands, TorchDefault, torch_dtype

    start = getattr(bound, "start", None)
    plain = TorchDefault(gemm)
    empty, kind, where = torch.empty, torch_dtype(gemm.d_type), torch.device("cuda", device)
    current_stream = torch._C._cuda_getCurrentRawStream
    current_device = torch.cuda.current_device
    shape = (gemm.n, gemm.m) if gemm.batch == 1 else (gemm.batch, gemm.n, gemm.m)
    stride = (gemm.ldd, 1) if gemm.batch == 1 else (gemm.stride_d, gemm.ldd, 1)
    ahead = getattr(bound, "ahead", False)
    seen: Seen = {}
    packed = gemm.ldd == gemm.m and gemm.stride_d in (0, gemm.ldd * gemm.n)

    def tuned(x: Any, w: Any, bias: Any = None, out: Any = None, scale_x: Any = None, scale_w: Any = None) -> Any:
        if out is None:
            if packed:
                out = empty(shape if x.dim() == len(shape) else (*x.shape[:-1], gemm.m), dtype=kind, device=where)
            else:
                out = torch.empty_strided(shape, stride, dtype=kind, device=where)
        pw, px, pd = w.data_ptr(), x.data_ptr(), out.data_ptr()
        if start is None or (pw | px | pd) & 15:
            flat = x.reshape(gemm.n, -1) if gemm.batch == 1 and gemm.trans_b == "N" else x
            view = out.as_strided(shape, stride)
            plain.run(Operands(w, flat, view, view, bias, scale_w, scale_x))
            return out
        pointers = (
            pw,
            px,
            pd,
            pd,
            0 if bias is None else bias.data_ptr(),
            0 if scale_w is None else scale_w.data_ptr(),
            0 if scale_x is None else scale_x.data_ptr(),
        )
        options = (not unwritten(seen, w),) if ahead else ()
        if current_device() == device:
            start(current_stream(device), pointers, *options)
        else:
            with torch.cuda.device(device):
                start(current_stream(device), pointers, *options)
        return out

    return tuned
