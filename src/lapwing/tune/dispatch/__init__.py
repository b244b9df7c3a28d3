"""Use a tuned library: choose the kernel of a product, and put it in the place of the framework's own function."""
