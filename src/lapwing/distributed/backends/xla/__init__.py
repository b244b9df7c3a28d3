"""Blocked factorisations inside XLA, on any device JAX knows."""
