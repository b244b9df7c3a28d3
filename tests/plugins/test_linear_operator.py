"""linear_operator's inv_quad_logdet by the closed form: values, gradients, warnings and errors stay linear_operator's own."""

from __future__ import annotations

import doctest
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")
linear_operator = pytest.importorskip("linear_operator")
from linear_operator import settings, to_linear_operator  # noqa: E402
from linear_operator.operators import AddedDiagLinearOperator, ConstantDiagLinearOperator, DiagLinearOperator  # noqa: E402
from linear_operator.utils.errors import NanError, NotPSDError  # noqa: E402

import lapwing.doors.cells as cells  # noqa: E402
from lapwing.plugins.linear_operator import install  # noqa: E402


def problem(shape, n, columns, dtype, device="cpu"):
    torch.manual_seed(n)
    a = torch.randn(*shape, n, n, dtype=torch.float64, device=device)
    k = (a @ a.mT / n + torch.eye(n, device=device)).to(dtype).requires_grad_()
    d = (torch.rand(*shape, n, dtype=dtype, device=device) + 0.5).requires_grad_()
    r = torch.randn(*shape, n, columns, dtype=dtype, device=device).requires_grad_()
    return k, d, r


def operator_of(kind, k, d):
    if kind == "dense":
        return to_linear_operator(k)
    if kind == "constant":
        return AddedDiagLinearOperator(to_linear_operator(k), ConstantDiagLinearOperator(d[..., :1], k.shape[-1]))
    return AddedDiagLinearOperator(to_linear_operator(k), DiagLinearOperator(d))


def values_and_gradients(kind, inputs, reduce):
    k, d, r = inputs
    values = operator_of(kind, k, d).inv_quad_logdet(r, logdet=True, reduce_inv_quad=reduce)
    weights = [torch.arange(1.0, 1 + v.numel(), dtype=v.dtype, device=v.device).view(v.shape) for v in values]
    gradients = torch.autograd.grad(values, inputs, weights, allow_unused=True)
    return [*values, *(g for g in gradients if g is not None)]


def check(kind, inputs, reduce=True):
    expected = values_and_gradients(kind, inputs, reduce)
    with install() as handle:
        got = values_and_gradients(kind, inputs, reduce)
    assert handle.report() == {"linear_operator.inv_quad_logdet": {"lapwing": 1, "own": 0}}
    n, eps = inputs[0].shape[-1], torch.finfo(inputs[0].dtype).eps
    for x, y in zip(expected, got, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        assert (x - y).abs().max() <= 20 * n * eps * max(x.abs().max(), 1)


@pytest.mark.parametrize("everywhere", [False, True], ids=["table", "ours"])
@pytest.mark.parametrize("kind", ["dense", "diagonal", "constant"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_and_gradients(kind, shape, dtype, everywhere, monkeypatch):
    for operation in ("cholesky", "cholesky_inverse", "triangular") if everywhere else ():
        monkeypatch.setitem(cells.AHEAD, (operation, "cpu"), (cells.Cell(10**6, 1, 1.0),))
    for n, columns, reduce in ((2, 1, True), (7, 2, False), (33, 1, True)):
        check(kind, problem(shape, n, columns, dtype), reduce)


@pytest.mark.gpu
@pytest.mark.parametrize("shape, n", [((64,), 256), ((3,), 7), ((), 100)], ids=str)
def test_on_the_gpu(shape, n):
    check("constant", problem(shape, n, 1, torch.float32, "cuda"))


def test_second_derivatives():
    k, d, r = problem((), 3, 1, torch.float64)

    def values(k, d, r):
        return operator_of("diagonal", (k + k.mT) / 2, d).inv_quad_logdet(r, logdet=True)

    with install() as handle:
        assert torch.autograd.gradgradcheck(values, (k, d, r), fast_mode=True)
    assert handle.report()["linear_operator.inv_quad_logdet"]["own"] == 0


def warned(function):
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        result = function()
    return result, [(w.category, str(w.message)) for w in log]


def test_jitter_and_errors_are_those_of_linear_operator():
    torch.manual_seed(0)
    x = torch.randn(3, 6, 2)
    singular = torch.eye(6).repeat(3, 1, 1)
    singular[1] = x[1] @ x[1].mT
    r = torch.ones(3, 6, 1)
    expected, log = warned(lambda: to_linear_operator(singular).inv_quad_logdet(r, logdet=True))
    with install():
        got, same = warned(lambda: to_linear_operator(singular).inv_quad_logdet(r, logdet=True))
        assert log and same == log
        for a, b in zip(expected, got, strict=True):
            assert torch.allclose(a, b, rtol=1e-3)
        with pytest.raises(NotPSDError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            to_linear_operator(-torch.eye(4)).inv_quad_logdet(torch.ones(4, 1), logdet=True)
        with pytest.raises(NanError):
            to_linear_operator(torch.full((4, 4), torch.nan)).inv_quad_logdet(torch.ones(4, 1), logdet=True)


def test_other_routes_stay_linear_operators_own():
    k, d, r = problem((), 5, 1, torch.float64)
    with install() as handle:
        cached = to_linear_operator(k)
        cached.cholesky()
        cached.inv_quad_logdet(r, logdet=True)
        torch.func.grad(lambda x: to_linear_operator(x).inv_quad_logdet(r, logdet=True)[1])(k)
        operator_of("diagonal", k, d).inv_quad_logdet(r)
        operator_of("dense", k, d).inv_quad_logdet(logdet=True)
        with settings.max_cholesky_size(1), settings.num_trace_samples(1):
            operator_of("dense", k, d).inv_quad_logdet(r, logdet=True)
        with pytest.raises(RuntimeError, match="should have the same number of dimensions"):
            operator_of("dense", k, d).inv_quad_logdet(torch.ones(2, 5, 1, dtype=torch.float64), logdet=True)
    assert handle.report()["linear_operator.inv_quad_logdet"]["lapwing"] == 0


def test_example_of_the_docstring():
    result = doctest.testmod(sys.modules["lapwing.plugins.linear_operator"])
    assert result.attempted and not result.failed


def test_undo_restores_every_name():
    names = (
        (linear_operator.LinearOperator, "inv_quad_logdet"),
        (AddedDiagLinearOperator, "evaluate_kernel"),
        (torch, "broadcast_shapes"),
    )
    own = [getattr(*name) for name in names]
    first, second = install(), install()
    assert all(getattr(*name) is not function for name, function in zip(names, own, strict=True))
    assert torch.broadcast_shapes((3, 1), torch.Size([2])) == (3, 2)
    assert torch.broadcast_shapes(torch.Size([3]), torch.Size([3])) == (3,) and torch.broadcast_shapes() == ()
    first.undo()
    first.undo()
    assert getattr(*names[0]) is not own[0]
    second.undo()
    assert [getattr(*name) for name in names] == own


def test_undo_restores_gpytorchs_names():
    gpytorch = pytest.importorskip("gpytorch")
    names = (
        (gpytorch.mlls.ExactMarginalLogLikelihood, "forward"),
        (gpytorch.kernels.Kernel, "sub_kernels"),
        (gpytorch.kernels.Kernel, "batch_shape"),
        (gpytorch.lazy.LazyEvaluatedKernelTensor, "_size"),
    )
    own = [vars(owner)[name] for owner, name in names]
    with install():
        assert all(vars(owner)[name] is not function for (owner, name), function in zip(names, own, strict=True))
    assert [vars(owner)[name] for owner, name in names] == own


def gaussian_process(shape, n, dtype=torch.float64, kernel=None, likelihood=None, prior=False):
    """A model with its marginal likelihood, its points and its observations, which have derivatives too."""
    gpytorch = pytest.importorskip("gpytorch")
    shape = torch.Size(shape)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
            batch = torch.Size() if kernel == "shared" else shape
            rbf = gpytorch.kernels.RBFKernel(batch_shape=batch, ard_num_dims=2 if kernel == "ard" else None)
            if isinstance(kernel, float):
                rbf = gpytorch.kernels.MaternKernel(nu=kernel, batch_shape=batch)
            self.covar_module = rbf if kernel == "bare" else gpytorch.kernels.ScaleKernel(rbf, batch_shape=batch)
            if prior:
                lengths = gpytorch.priors.GammaPrior(3.0, 6.0)
                rbf.register_prior("lengthscale_prior", lengths, lambda m: m.lengthscale, lambda m, v: m._set_lengthscale(v))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    torch.manual_seed(n)
    x = torch.rand(*shape, n, 2, dtype=dtype)
    y = (torch.sin(6 * x.sum(-1)) + 0.1 * torch.randn(*shape, n, dtype=dtype)).requires_grad_()
    likelihood = (likelihood or gpytorch.likelihoods.GaussianLikelihood)(batch_shape=shape)
    model = Model(x, y.detach(), likelihood).to(dtype)
    return model, gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model), x, y


def loss_and_gradients(model, mll, x, y):
    value = mll(model(x), y)
    weights = torch.arange(1.0, 1 + value.numel(), dtype=y.dtype).view(value.shape)
    inputs = [*model.parameters(), y]
    return value, torch.autograd.grad(value, [z for z in inputs if z.requires_grad], weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape, n", [((), 2), ((), 9), ((3,), 7), ((2, 3), 33)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"prior": True}, *({"kernel": k} for k in ("ard", "bare", "shared", 0.5, 1.5, 2.5))],
    ids=lambda options: str(next(iter(options.values()), "plain")),
)
def test_marginal_likelihood_and_gradients(shape, n, dtype, options):
    parts = gaussian_process(shape, n, dtype, **options)
    expected, gradients = loss_and_gradients(*parts)
    with install() as handle:
        got, same = loss_and_gradients(*parts)
    assert handle.report() == {"linear_operator.inv_quad_logdet": {"lapwing": 1, "own": 0}}
    function = "_LogDensity" if options.get("kernel") == "ard" else "_KernelLogDensity"
    assert options.get("prior") or type(got.grad_fn).__name__ == f"{function}Backward"
    # the noise 0.693 bounds the condition of K by n / 0.693 + 1
    bound = 20 * n * n * torch.finfo(dtype).eps
    for a, b in zip([expected, *gradients], [got, *same], strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert (a - b).abs().max() <= bound * max(1, a.abs().max())


def test_what_is_not_differentiated_of_a_marginal_likelihood():
    model, mll, x, y = gaussian_process((3,), 6)
    for parameter in [*model.covar_module.parameters(), *model.likelihood.parameters()]:
        parameter.requires_grad_(False)
    expected, gradients = loss_and_gradients(model, mll, x, y)
    with install(), torch.no_grad():
        assert torch.allclose(mll(model(x), y), expected, rtol=1e-12)
    with install():
        _, same = loss_and_gradients(model, mll, x, y)
    assert len(gradients) == len(same) == 2
    assert all(torch.allclose(a, b, rtol=1e-10) for a, b in zip(gradients, same, strict=True))


@pytest.mark.parametrize("kernel", [None, "ard", 0.5, 1.5, 2.5])
def test_second_derivatives_of_a_marginal_likelihood(kernel):
    model, mll, x, y = gaussian_process((), 4, kernel=kernel)
    parameters = list(model.parameters())

    def hessian():
        first = torch.autograd.grad(mll(model(x), y), parameters, create_graph=True)
        # gpytorch's own covariances have no second derivative by the length scale
        own = [*model.covar_module.parameters()] if kernel == "ard" else [model.covar_module.raw_outputscale]
        noise = model.likelihood.noise_covar.raw_noise
        return torch.autograd.grad([first[parameters.index(z)].sum() for z in (noise, own[0])], [noise, own[0], y])

    expected = hessian()
    with install() as handle:
        got = hessian()
    assert handle.report()["linear_operator.inv_quad_logdet"]["lapwing"] == 1
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("kernel", [None, "shared", 0.5, 1.5, 2.5])
def test_second_derivatives_by_the_length_scale(kernel):
    _, mll, x, y = gaussian_process((2,), 4, kernel=kernel)

    class Value(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mll = mll

        def forward(self, y):
            return self.mll(self.mll.model(x), y)

    module = Value()
    names, values = zip(*module.named_parameters(), strict=True)

    def value(y, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (y,))

    inputs = (y, *(z.detach().requires_grad_() for z in values))
    with install() as handle:
        assert torch.autograd.gradcheck(value, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(value, inputs, fast_mode=True)
    assert handle.report()["linear_operator.inv_quad_logdet"]["own"] == 0


@pytest.mark.parametrize(
    "why", ["points", "subclass", "forward", "distance", "class", "evaluated", "without gradients", "rows"]
)
def test_kernels_that_gpytorch_evaluates(why, monkeypatch):
    gpytorch = pytest.importorskip("gpytorch")
    model, mll, x, y = gaussian_process((3,), 7)
    rbf = model.covar_module.base_kernel
    if why == "points":
        x = x.requires_grad_()
        model.set_train_data(x, strict=False)
    elif why == "subclass":
        rbf.__class__ = type("Mine", (gpytorch.kernels.RBFKernel,), {})
    elif why == "forward":
        own = rbf.forward
        rbf.forward = lambda *x, **options: own(*x, **options) * 0.5
    elif why == "distance":
        distance = rbf.covar_dist
        rbf.covar_dist = lambda *x, **options: distance(*x, **options) * 1.5
    elif why == "class":
        formula = gpytorch.kernels.RBFKernel.forward
        monkeypatch.setattr(gpytorch.kernels.RBFKernel, "forward", lambda *x, **options: formula(*x, **options) * 0.5)

    def value():
        if why == "without gradients":
            with torch.no_grad():
                prior = model(x)
        else:
            prior = model(x)
        if why == "rows":
            prior = prior[..., :5]
        if why == "evaluated":
            prior.lazy_covariance_matrix.evaluate_kernel()
        result = mll(prior, y[..., : prior.loc.shape[-1]])
        return result, torch.autograd.grad(result.sum(), [x if why == "points" else y])

    expected, gradients = value()
    with install():
        got, same = value()
    assert type(got.grad_fn).__name__ == "_LogDensityBackward"
    for a, b in zip([expected, *gradients], [got, *same], strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", [None, "ard", 1.5])
@pytest.mark.parametrize("how", ["changed", "inference"])
def test_points_and_observations_may_change_before_the_derivative(how, kernel):
    def gradients():
        model, mll, x, y = gaussian_process((3,), 7, kernel=kernel)
        with torch.inference_mode(how == "inference"):
            x, y = x if kernel == "ard" else x.clone(), y.detach().clone()  # gpytorch keeps the points for many lengths
        model.set_train_data(x, strict=False)
        value = mll(model(x), y)
        with torch.inference_mode(how == "inference"):
            for changed in (y,) if kernel == "ard" else (x, y):
                changed.mul_(2)
        return torch.autograd.grad(value.sum(), [*model.parameters()])

    expected = gradients()
    with install() as handle:
        got = gradients()
    assert handle.report()["linear_operator.inv_quad_logdet"] == {"lapwing": 1, "own": 0}
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("kernel", [None, "ard", 0.5, 1.5, 2.5, "operator"])
def test_several_derivatives_at_once(kernel):
    """Those of each model of a batch, by one call under torch's vmap."""
    if kernel == "operator":
        inputs = k, d, r = problem((3,), 5, 1, torch.float64)
    else:
        model, mll, x, y = gaussian_process((3,), 5, kernel=kernel)
        inputs = [*model.parameters(), y]

    def derivatives():
        value = sum(operator_of("diagonal", k, d).inv_quad_logdet(r, logdet=True)) if kernel == "operator" else mll(model(x), y)
        return torch.autograd.grad(value, inputs, torch.eye(3, dtype=torch.float64), is_grads_batched=True)

    expected = derivatives()
    with install() as handle:
        got = derivatives()
    assert handle.report()["linear_operator.inv_quad_logdet"] == {"lapwing": 1, "own": 0}
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(expected, got, strict=True))


def test_a_smoothness_that_gpytorch_does_not_have():
    model, mll, x, y = gaussian_process((), 5, kernel=2.5)
    model.covar_module.base_kernel.nu = 3.5
    with install(), pytest.raises(UnboundLocalError):
        mll(model(x), y)


def test_marginal_likelihoods_that_stay_gpytorchs_own():
    gpytorch = pytest.importorskip("gpytorch")
    parts = gaussian_process((), 5)
    missing = parts[3].detach().clone()
    missing[2] = torch.nan
    masked = (*parts[:3], missing.requires_grad_())
    another = gpytorch.mlls.LeaveOneOutPseudoLikelihood(parts[0].likelihood, parts[0])
    for context, (model, mll, x, y) in (
        (gpytorch.settings.observation_nan_policy("mask"), masked),
        (gpytorch.settings.fast_computations(log_prob=False), parts),
        (gpytorch.settings.max_cholesky_size(1), parts),
        (gpytorch.settings.num_trace_samples(1), (parts[0], another, *parts[2:])),
    ):
        with context, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(1)
            expected = mll(model(x), y)
            with install():
                torch.manual_seed(1)
                got = mll(model(x), y)
        assert "LogDensity" not in type(got.grad_fn).__name__ and torch.allclose(expected, got, rtol=1e-9)


def test_singular_kernels_get_gpytorchs_jitter_and_warning():
    gpytorch = pytest.importorskip("gpytorch")
    model, mll, x, y = gaussian_process((), 12, torch.float32)
    model.likelihood.noise_covar.register_constraint("raw_noise", type(model.covar_module.raw_outputscale_constraint)())
    model.likelihood.noise = 1e-12
    x = x * 1e-4
    with torch.no_grad(), settings.cholesky_jitter(float_value=1e-4):
        model.set_train_data(x, y.detach(), strict=False)
        expected, log = warned(lambda: mll(model(x), y))
        with install():
            got, same = warned(lambda: mll(model(x), y))
            assert log and same == log
        # the matrix is rounded noise but for the jitter, and so are the last digits
        assert torch.allclose(expected, got, rtol=1e-2)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (expected,) = torch.autograd.grad(mll(model(x), y), y, create_graph=True)
            with install():
                (got,) = torch.autograd.grad(mll(model(x), y), y, create_graph=True)
        assert got.requires_grad and torch.allclose(expected, got, rtol=1e-2, atol=1e-2 * float(expected.detach().abs().max()))
        broken = x * torch.nan
        model.set_train_data(broken, strict=False)
        # gpytorch compares the points with the training points, and NaN is not NaN
        with install(), gpytorch.settings.debug(False), pytest.raises(NanError):
            mll(model(broken), y)


def test_shapes_and_kernels_are_found_as_by_the_libraries():
    import itertools

    gpytorch = pytest.importorskip("gpytorch")
    sizes = [torch.Size(s) for s in ((), (1,), (3,), (0,), (2, 3), (2, 1), (1, 3), (4, 1, 1), (4, 2, 3))]

    def shape_of(*shapes):
        try:
            return torch.broadcast_shapes(*shapes)
        except RuntimeError as error:
            return str(error)

    pairs = [*itertools.product(sizes, sizes), *itertools.product(sizes[:6], sizes[3:], sizes[4:])]
    rbf = gpytorch.kernels.RBFKernel()
    kernel = gpytorch.kernels.ScaleKernel(rbf) + gpytorch.kernels.ProductKernel(rbf, gpytorch.kernels.MaternKernel())
    expected, kernels = [shape_of(*pair) for pair in pairs], list(kernel.sub_kernels())
    made = gpytorch.kernels
    shared, own = (made.ScaleKernel(made.MaternKernel(batch_shape=s), batch_shape=s) for s in (sizes[0], sizes[2]))
    mixed = made.ScaleKernel(made.RBFKernel(batch_shape=sizes[2]))
    tasks = made.ScaleKernel(made.RBFKernelGrad())  # several rows for each point
    nested = made.ScaleKernel(made.AdditiveKernel(mixed, made.LinearKernel(batch_shape=torch.Size([2, 1]))))

    def shapes_of_kernels():
        points = torch.rand(4, 2), torch.rand(3, 4, 2), torch.rand(2, 3, 4, 2), torch.rand(5, 4, 2)
        pairs = itertools.product((shared, own, mixed, tasks, nested, kernel), points)
        return [(k.batch_shape, shape_of_kernel(k, x), shape_of_kernel(k, x, x[..., :3, :])) for k, x in pairs]

    def shape_of_kernel(*arguments):
        try:
            return arguments[0](*arguments[1:]).shape
        except RuntimeError as error:
            return str(error)

    expected_of_kernels = shapes_of_kernels()
    of_tuples = made.ScaleKernel(made.RBFKernel(batch_shape=(3,)), batch_shape=(3,))
    with install():
        assert shapes_of_kernels() == expected_of_kernels
        assert of_tuples.batch_shape.numel() == 3
        assert [shape_of(*pair) for pair in pairs] == expected and list(kernel.sub_kernels()) == kernels
        assert type(torch.broadcast_shapes(sizes[1], sizes[4])) is torch.Size


@pytest.mark.parametrize("kernel", ["scaled", "sum", "product", "fixed"])
def test_gpytorch_trains_to_the_same_loss(kernel):
    gpytorch = pytest.importorskip("gpytorch")
    rbf, matern = gpytorch.kernels.RBFKernel, gpytorch.kernels.MaternKernel
    kernels = {
        "scaled": lambda: gpytorch.kernels.ScaleKernel(rbf(batch_shape=shape), batch_shape=shape),
        "sum": lambda: rbf(batch_shape=shape) + gpytorch.kernels.ScaleKernel(matern(batch_shape=shape), batch_shape=shape),
        "product": lambda: rbf(batch_shape=shape) * matern(batch_shape=shape),
        "fixed": lambda: rbf(batch_shape=shape),
    }
    shape = torch.Size([3])

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
            self.covar_module = kernels[kernel]()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def train():
        torch.manual_seed(0)
        x = torch.rand(3, 20, 2, dtype=torch.float64)
        y = torch.sin(6 * x.sum(-1)) + 0.1 * torch.randn(3, 20, dtype=torch.float64)
        if kernel == "fixed":
            likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(0.1 + 0.1 * torch.rand_like(y))
        else:
            likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=shape)
        model = Model(x, y, likelihood).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood.double(), model)
        for _ in range(5):
            optimizer.zero_grad()
            loss = -mll(model(x), y).sum()
            loss.backward()
            optimizer.step()
        model.eval()
        return loss.item(), model(x[:, :4]).mean.detach()

    loss, mean = train()
    with install() as handle:
        same_loss, same_mean = train()
    assert handle.report()["linear_operator.inv_quad_logdet"] == {"lapwing": 5, "own": 0}
    assert same_loss == pytest.approx(loss, rel=1e-10) and torch.allclose(mean, same_mean, rtol=1e-7, atol=1e-9)
