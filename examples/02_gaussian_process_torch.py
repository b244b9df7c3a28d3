"""Fit the length scale of many small Gaussian processes at once, with gradients through the factor."""

import torch

import lapwing as lw

torch.manual_seed(0)
processes, points = 200, 24
x = torch.rand(processes, points, 1, dtype=torch.float64)
y = torch.sin(6 * x.squeeze(-1)) + 0.1 * torch.randn(processes, points, dtype=torch.float64)

log_scale = torch.zeros(processes, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([log_scale], lr=0.1)


def negative_log_likelihood() -> torch.Tensor:
    distance = (x - x.mT) / log_scale.exp()[:, None, None]
    kernel = torch.exp(-(distance**2) / 2) + 0.01 * torch.eye(points, dtype=torch.float64)
    l = lw.cholesky(kernel)
    z = torch.linalg.solve_triangular(l, y[..., None], upper=False)
    return (z**2).sum((-1, -2)) / 2 + l.diagonal(dim1=-2, dim2=-1).log().sum(-1)


first = negative_log_likelihood().mean().item()
for _ in range(40):
    optimizer.zero_grad()
    loss = negative_log_likelihood().sum()
    loss.backward()
    optimizer.step()
last = negative_log_likelihood().mean().item()
print(f"mean negative log likelihood {first:.2f} -> {last:.2f}; median length scale {log_scale.exp().median():.3f}")
assert last < first
