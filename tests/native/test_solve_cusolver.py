"""Engine cusolver on the frames from triangular to svdvals, called through the native core."""

import importlib.util

import pytest

from lapwing.core.native import DTYPE_CODE, ENGINES, OPS, native
from solve_checks import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(native is None, reason="no native core")]


@pytest.fixture(scope="module")
def run():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")

    def call(op, flags, sizes, *arrays):
        there = {id(array): torch.from_numpy(array.copy()).cuda() for array in arrays}
        blocks = []

        def scratch(size):
            blocks.append(torch.full((size,), 255, dtype=torch.uint8, device="cuda"))
            return blocks[-1].data_ptr()

        pointers = [there[id(array)].data_ptr() for array in arrays]
        dtype, stream = DTYPE_CODE[arrays[0].dtype.name], torch.cuda.current_stream().cuda_stream
        native.run(OPS[op], dtype, 1, 0, ENGINES["cusolver"], 0, flags, sizes, stream, scratch, *pointers)
        torch.cuda.synchronize()
        need = native.scratch_bytes(OPS[op], dtype, 1, 0, ENGINES["cusolver"], 0, flags, sizes)
        assert need == sum(block.numel() for block in blocks)
        for array in arrays:
            array[...] = there[id(array)].cpu().numpy()

    return call
