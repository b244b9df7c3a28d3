"""Use a tuned library: choose the kernel of a product, and call it instead of the framework's own function."""
