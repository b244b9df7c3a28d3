"""The kinds of sharded arrays: ShardedMatrix, torch DTensor, JAX arrays with a NamedSharding."""
