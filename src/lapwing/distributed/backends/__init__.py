"""The libraries that factor and solve sharded matrices."""
