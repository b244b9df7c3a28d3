"""Shampoo: the inverse fourth roots of all blocks of a network in one call, against one torch.linalg.eigh for each block."""

import itertools

import torch

import lapwing as lw


def roots_by_lapwing(blocks: list[torch.Tensor]) -> list[torch.Tensor]:
    return lw.grouped(lw.inv_root, blocks, 4, ridge=1e-4)


def roots_one_by_one(blocks: list[torch.Tensor]) -> list[torch.Tensor]:
    roots = []
    for block in blocks:
        w, v = torch.linalg.eigh(block + 1e-4 * torch.eye(len(block)))
        roots.append((v * w**-0.25) @ v.mT)
    return roots


def train(inverse_roots, steps: int = 30) -> list[float]:
    torch.manual_seed(0)
    sizes = [10, 48, 48, 32, 48, 1]
    layers = [torch.randn(n, m) / n**0.5 for n, m in itertools.pairwise(sizes)]
    weights = [w.requires_grad_() for w in layers]
    left, right = [torch.zeros(len(w), len(w)) for w in weights], [torch.zeros(w.shape[1], w.shape[1]) for w in weights]
    x = torch.randn(512, sizes[0])
    y = torch.sin(x.sum(1, keepdim=True))
    losses = []
    for _ in range(steps):
        h = x
        for w in weights[:-1]:
            h = torch.tanh(h @ w)
        loss = ((h @ weights[-1] - y) ** 2).mean()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for l, r, g in zip(left, right, gradients, strict=True):
                l += g @ g.mT
                r += g.mT @ g
            roots = inverse_roots(left + right)  # ten matrices of five sizes
            for w, l, r, g in zip(weights, roots, roots[len(weights) :], gradients, strict=False):
                w -= 0.1 * l @ g @ r
    return losses


ours, plain = train(roots_by_lapwing), train(roots_one_by_one)
print(f"loss {ours[0]:.4f} -> {ours[-1]:.4f}; one by one {plain[0]:.4f} -> {plain[-1]:.4f}")
assert ours[-1] < 0.7 * ours[0]
assert max(abs(a - b) for a, b in zip(ours, plain, strict=True)) < 1e-2 * ours[0]
