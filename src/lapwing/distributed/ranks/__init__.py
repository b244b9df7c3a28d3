"""Groups of ranks: MPI, torch.distributed and jax.distributed behind one protocol."""
