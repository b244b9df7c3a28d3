"""Triton templates of a column-major product D = act(alpha op(A) op(B) + beta C + bias).

``tile``: a block of D, or one of ``split`` parts of its sum, for each program. ``stream``: a fixed number of programs share the
work evenly (stream-K). ``reduce``: the second pass of a split sum.

How a split sum is combined: with REDUCE 1, programs add to a float32 workspace with atomics, and the last program of a block
finishes it (the order varies, so it is not deterministic). With 2, ``reduce`` adds the parts. With 3, the last program of a
block adds the parts in order (deterministic). Workspace and counters must be zero before the first call, and are zero again
after each call.

PDL: the next kernel may start when the reads of this one are done (1, 4) or begin (2, 3); each waits for the previous one.
With 3 and 4, AHEAD k-blocks of A are sent to the cache before that wait. Values that the previous kernel still writes are read
after it, so this is always correct.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def to_tf32(x):
    """Rounded to the 10 bits that tf32 keeps; NaN stays."""
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(x == x, rounded, x)


@triton.jit
def finish(acc, C, D, BIAS, SA, SB, ri, rj, m, n, ldc, ldd, alpha, beta, EPILOGUE: tl.constexpr):
    """act(alpha acc + beta C + bias) -> D. acc is a block of D, rows ri down, columns rj across."""
    BETA: tl.constexpr = EPILOGUE % 2
    BIASED: tl.constexpr = EPILOGUE // 2 % 2
    ACT: tl.constexpr = EPILOGUE // 4 % 4
    SCALE_A: tl.constexpr = EPILOGUE // 16 % 4
    SCALE_B: tl.constexpr = EPILOGUE // 64 % 4
    inside = (ri < m)[:, None] & (rj < n)[None, :]
    if SCALE_A == 1:
        acc *= tl.load(SA)
    if SCALE_A == 2:
        acc *= tl.load(SA + ri, mask=ri < m, other=0.0)[:, None]
    if SCALE_B == 1:
        acc *= tl.load(SB)
    if SCALE_B == 2:
        acc *= tl.load(SB + rj, mask=rj < n, other=0.0)[None, :]
    acc *= alpha
    if BETA:
        acc += beta * tl.load(C + ri[:, None] + rj[None, :].to(tl.int64) * ldc, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        acc += tl.load(BIAS + ri, mask=ri < m, other=0.0).to(tl.float32)[:, None]
    if ACT == 1:
        acc = tl.maximum(acc, 0.0)
    if ACT == 2:  # gelu, the tanh form, as cuBLASLt and torch's approximate="tanh"
        z = 0.7978845608028654 * (acc + 0.044715 * acc * acc * acc)
        acc = acc * (1.0 - 1.0 / (tl.exp(2.0 * z) + 1.0))
    if ACT == 3:  # swish
        acc = acc / (1.0 + tl.exp(-acc))
    tl.store(D + ri[:, None] + rj[None, :].to(tl.int64) * ldd, acc.to(D.dtype.element_ty), mask=inside)


@triton.jit
def partial_sum(
    A, B, ri, rj, first, last, m, n, k, lda, ldb,
    K_A: tl.constexpr, K_B: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SWAP: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The sum over k-blocks first..last-1 of one block of D. K_A, K_B: the summed index is contiguous in memory."""
    rk = first * BK + tl.arange(0, BK)
    # where k is contiguous, rows outside read row 0 instead of being masked: what they give is never stored
    ia = tl.where(ri < m, ri, 0).to(tl.int64) if K_A else ri.to(tl.int64)
    jb = tl.where(rj < n, rj, 0).to(tl.int64) if K_B else rj.to(tl.int64)
    if K_A:
        a = A + ia[:, None] * lda + rk[None, :]
    else:
        a = A + ia[:, None] + rk[None, :].to(tl.int64) * lda
    if K_B:
        b = B + rk[:, None] + jb[None, :] * ldb
    else:
        b = B + rk[:, None].to(tl.int64) * ldb + jb[None, :]
    if SWAP:
        acc = tl.zeros((BN, BM), tl.float32)
    else:
        acc = tl.zeros((BM, BN), tl.float32)
    for i in range(first, last):
        left = k - i * BK
        ks = tl.arange(0, BK)
        if EVEN and K_A:
            x = tl.load(a, eviction_policy="evict_first")
        elif EVEN:
            x = tl.load(a, mask=(ri < m)[:, None], other=0.0, eviction_policy="evict_first")
        else:
            x = tl.load(a, mask=(ri < m)[:, None] & (ks < left)[None, :], other=0.0, eviction_policy="evict_first")
        if EVEN and K_B:
            y = tl.load(b)
        elif EVEN:
            y = tl.load(b, mask=(rj < n)[None, :], other=0.0)
        else:
            y = tl.load(b, mask=(ks < left)[:, None] & (rj < n)[None, :], other=0.0)
        if PRECISION == "tf32":  # the tensor cores drop the last bits; the vendor's library rounds
            x = to_tf32(x)
            y = to_tf32(y)
        if SWAP:
            acc = tl.dot(tl.trans(y), tl.trans(x), acc, input_precision=PRECISION)
        else:
            acc = tl.dot(x, y, acc, input_precision=PRECISION)
        a += BK if K_A else BK * lda.to(tl.int64)
        b += BK if K_B else BK * ldb.to(tl.int64)
    if SWAP:
        acc = tl.trans(acc)
    return acc


@triton.jit
def send_ahead(A, ri, first, last, m, lda, BM: tl.constexpr, BK: tl.constexpr, AHEAD: tl.constexpr):
    """A's next AHEAD k-blocks of these rows, which lie along k, to the second-level cache: one request for each 128 bytes."""
    SIZE: tl.constexpr = A.dtype.element_ty.primitive_bitwidth // 8
    LINES: tl.constexpr = BK * SIZE // 128
    row = tl.where(ri < m, ri, 0).to(tl.int64)[:, None] * lda
    line = A + row + tl.arange(0, LINES)[None, :] * (128 // SIZE)
    for i in range(first, tl.minimum(last, first + AHEAD)):
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [line + i * BK], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def block_of(t, tiles_m, tiles_n, GROUP: tl.constexpr):
    """The t-th block of D, walking in strips GROUP blocks wide, so that neighbours share operands in the cache."""
    wide = GROUP * tiles_n
    strip = t // wide
    size = tl.minimum(tiles_m - strip * GROUP, GROUP)
    return strip * GROUP + (t % wide) % size, (t % wide) // size


@triton.jit
def tile(
    A, B, C, D, BIAS, SA, SB, WORK, LOCKS, m, n, k, lda, ldb, ldc, ldd, step_a, step_b, step_c, step_d, split, alpha, beta,
    K_A: tl.constexpr, K_B: tl.constexpr, EPILOGUE: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    SWAP: tl.constexpr, REDUCE: tl.constexpr, PDL: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    A += batch * step_a
    B += batch * step_b
    C += batch * step_c
    D += batch * step_d
    tiles_m = tl.cdiv(m, BM)
    tiles_n = tl.cdiv(n, BN)
    t = tl.program_id(0)
    part = tl.program_id(1)
    im, jn = block_of(t, tiles_m, tiles_n, GROUP)
    ri = im * BM + tl.arange(0, BM)
    rj = jn * BN + tl.arange(0, BN)
    steps = tl.cdiv(k, BK)
    first = part * steps // split
    last = (part + 1) * steps // split
    if PDL == 3:
        tl.extra.cuda.gdc_launch_dependents()
    if AHEAD:
        send_ahead(A, ri, first, last, m, lda, BM, BK, AHEAD)
    if PDL:
        tl.extra.cuda.gdc_wait()
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()
    acc = partial_sum(A, B, ri, rj, first, last, m, n, k, lda, ldb, K_A, K_B, BM, BN, BK, SWAP, EVEN, PRECISION)
    if PDL == 1 or PDL == 4:
        tl.extra.cuda.gdc_launch_dependents()
    if REDUCE == 0:
        finish(acc, C, D, BIAS, SA, SB, ri, rj, m, n, ldc, ldd, alpha, beta, EPILOGUE)
    else:
        place = batch * tiles_m * tiles_n + t
        cells = tl.arange(0, BM)[:, None] + BM * tl.arange(0, BN)[None, :]
        if REDUCE == 1:
            own = WORK + place * (BM * BN) + cells
            tl.atomic_add(own, acc, sem="relaxed")
        else:
            own = WORK + (place * split + part) * (BM * BN) + cells
            tl.store(own, acc)
        if REDUCE != 2:
            tl.debug_barrier()
            if tl.atomic_add(LOCKS + place, 1, sem="acq_rel") == split - 1:
                if REDUCE == 1:
                    total = tl.load(own, cache_modifier=".cg")
                    tl.debug_barrier()  # a cell may be read by several threads, and is cleared by one
                    tl.store(own, tl.zeros((BM, BN), tl.float32))
                else:
                    total = tl.zeros((BM, BN), tl.float32)
                    for s in range(split):
                        total += tl.load(WORK + (place * split + s) * (BM * BN) + cells, cache_modifier=".cg")
                tl.store(LOCKS + place, 0)
                finish(total, C, D, BIAS, SA, SB, ri, rj, m, n, ldc, ldd, alpha, beta, EPILOGUE)


@triton.jit
def reduce(
    C, D, BIAS, SA, SB, WORK, m, n, ldc, ldd, step_c, step_d, split, alpha, beta,
    EPILOGUE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Add the parts of one block in order, and finish it."""
    batch = tl.program_id(2).to(tl.int64)
    C += batch * step_c
    D += batch * step_d
    tiles_m = tl.cdiv(m, BM)
    tiles_n = tl.cdiv(n, BN)
    t = tl.program_id(0)
    im, jn = block_of(t, tiles_m, tiles_n, GROUP)
    place = batch * tiles_m * tiles_n + t
    cells = tl.arange(0, BM)[:, None] + BM * tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for s in range(split):
        total += tl.load(WORK + (place * split + s) * (BM * BN) + cells)
    ri = im * BM + tl.arange(0, BM)
    rj = jn * BN + tl.arange(0, BN)
    finish(total, C, D, BIAS, SA, SB, ri, rj, m, n, ldc, ldd, alpha, beta, EPILOGUE)


@triton.jit
def stream(
    A, B, C, D, BIAS, SA, SB, WORK, LOCKS, m, n, k, lda, ldb, ldc, ldd, programs, alpha, beta,
    K_A: tl.constexpr, K_B: tl.constexpr, EPILOGUE: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """Put the k-blocks of all blocks of D in one row; program p computes numbers p total/programs ... (p+1) total/programs.

    If one program computes a whole block, it finishes it directly. Otherwise each program stores its part (in one of two
    slots: for a part that begins inside a block, and for one that begins with it), and the last program of the block adds
    them in order.
    """
    tiles_m = tl.cdiv(m, BM)
    tiles_n = tl.cdiv(n, BN)
    steps = tl.cdiv(k, BK)
    total_steps = (tiles_m * tiles_n).to(tl.int64) * steps
    p = tl.program_id(0)
    here = p * total_steps // programs
    end = (p + 1) * total_steps // programs
    cells = tl.arange(0, BM)[:, None] + BM * tl.arange(0, BN)[None, :]
    while here < end:
        t = (here // steps).to(tl.int32)
        first = (here % steps).to(tl.int32)
        last = tl.minimum(first + (end - here), steps).to(tl.int32)
        im, jn = block_of(t, tiles_m, tiles_n, GROUP)
        ri = im * BM + tl.arange(0, BM)
        rj = jn * BN + tl.arange(0, BN)
        acc = partial_sum(A, B, ri, rj, first, last, m, n, k, lda, ldb, K_A, K_B, BM, BN, BK, SWAP, EVEN, PRECISION)
        if last - first == steps:
            finish(acc, C, D, BIAS, SA, SB, ri, rj, m, n, ldc, ldd, alpha, beta, EPILOGUE)
        else:
            slot = 2 * p + (first == 0).to(tl.int32)
            tl.store(WORK + slot.to(tl.int64) * (BM * BN) + cells, acc)
            tl.debug_barrier()
            if tl.atomic_add(LOCKS + t, last - first, sem="acq_rel") + (last - first) == steps:
                begin = t.to(tl.int64) * steps
                # the program whose share holds step s is the largest q with q total // programs <= s
                q = (((begin + 1) * programs - 1) // total_steps).to(tl.int32)
                q_last = (((begin + steps) * programs - 1) // total_steps).to(tl.int32)
                whole = tl.zeros((BM, BN), tl.float32)
                while q <= q_last:
                    inner = (q * total_steps // programs <= begin).to(tl.int32)
                    whole += tl.load(WORK + (2 * q + inner).to(tl.int64) * (BM * BN) + cells, cache_modifier=".cg")
                    q += 1
                tl.store(LOCKS + t, 0)
                finish(whole, C, D, BIAS, SA, SB, ri, rj, m, n, ldc, ldd, alpha, beta, EPILOGUE)
        here += last - first
