"""Who the ranks are, and how they agree: MPI, torch.distributed, JAX's processes."""
