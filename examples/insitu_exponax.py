"""A solver of another project, analysed while it runs: decaying 2-D turbulence with exponax (pip install exponax).

python examples/insitu_exponax.py [points, default 128] [steps, default 600]
"""

import sys

import equinox
import exponax
import jax
import numpy as np

from lapwing import insitu

jax.config.update("jax_enable_x64", True)
points, steps = [int(x) for x in sys.argv[1:3]] if len(sys.argv) > 2 else (128, 600)
extent, dt = 1.0, 0.01

# exponax: the vorticity of a periodic flow, Re of a few thousand
advance = equinox.filter_jit(exponax.stepper.NavierStokesVorticity(2, extent, points, dt, diffusivity=1e-4))
vorticity = 10 * exponax.ic.RandomTruncatedFourierSeries(2, cutoff=5, max_one=True)(points, key=jax.random.key(0))

# lapwing: these lines connect the solver with the analyses
pod = insitu.POD("w", rank=20, weights="mesh")
spectrum = insitu.Spectrum("w")
mesh = insitu.Mesh(global_shape=(points, points), spacing=(extent / points,) * 2)
checks, shared = [], []


@insitu.on_step
def look(ctx, w):
    seen = np.asarray(w)
    shared.append(seen.ctypes.data == current.unsafe_buffer_pointer())  # the solver's own memory
    checks.append(seen.copy())  # only for the check below: POD does not need this history


with insitu.Hub([pod, spectrum, look], output=None, mesh=mesh) as hub:
    for n in range(steps):
        vorticity = advance(vorticity)  # (1, points, points)
        current = vorticity[0]
        if hub.step(n, (n + 1) * dt, w=current) == 2:
            break

print("singular values", *(f"{x:.6g}" for x in pod.sigma[:6]), "...")
print(f"{pod.rank} modes hold {pod.energy:.6f} of the enstrophy; error of a singular value at most {pod.bound:.2g}")
history = np.array(checks).reshape(len(checks), -1) * extent / points
true = np.linalg.svd(history, compute_uv=False)[: pod.rank]
print(f"against numpy.linalg.svd of the history: {np.abs(true - pod.sigma).max():.2g}; no copy: {all(shared)}")
print(f"largest scale of the flow: wavenumber {spectrum.wavenumbers[spectrum.power.argmax()] / (2 * np.pi):.0f}")
assert (np.abs(true - pod.sigma) <= pod.bounds + 1e-10 * true[0]).all()
