"""SOAP: Adam in the eigenbases of Shampoo's blocks. All eigenbases of a network come from one call."""

import itertools

import torch

import lapwing as lw


def bases_by_lapwing(blocks: list[torch.Tensor]) -> list[torch.Tensor]:
    return [result.eigenvectors for result in lw.grouped(lw.eigh, blocks)]


def bases_one_by_one(blocks: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.linalg.eigh(block).eigenvectors for block in blocks]


def train(eigenbases, steps: int = 40) -> list[float]:
    torch.manual_seed(0)
    sizes = [10, 48, 48, 32, 48, 1]
    weights = [(torch.randn(n, m) / n**0.5).requires_grad_() for n, m in itertools.pairwise(sizes)]
    left, right = [torch.zeros(len(w), len(w)) for w in weights], [torch.zeros(w.shape[1], w.shape[1]) for w in weights]
    first, second = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    x = torch.randn(512, sizes[0])
    y = torch.sin(x.sum(1, keepdim=True))
    losses = []
    for step in range(1, steps + 1):
        h = x
        for w in weights[:-1]:
            h = torch.tanh(h @ w)
        loss = ((h @ weights[-1] - y) ** 2).mean()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for l, r, g in zip(left, right, gradients, strict=True):
                l.lerp_(g @ g.mT, 0.1)
                r.lerp_(g.mT @ g, 0.1)
            if step % 10 == 1:  # the bases change slowly
                bases = eigenbases(left + right)
            for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
                u, v = bases[i], bases[i + len(weights)]
                first[i].lerp_(g, 0.1)
                turned = u.mT @ g @ v
                second[i].lerp_(turned**2, 0.05)
                mean = (u.mT @ first[i] @ v) / (1 - 0.9**step)
                w -= 0.01 * u @ (mean / ((second[i] / (1 - 0.95**step)).sqrt() + 1e-8)) @ v.mT
    return losses


ours, plain = train(bases_by_lapwing), train(bases_one_by_one)
print(f"loss {ours[0]:.4f} -> {ours[-1]:.4f}; one by one {plain[0]:.4f} -> {plain[-1]:.4f}")
assert ours[-1] < 0.7 * ours[0] and plain[-1] < 0.7 * plain[0]
