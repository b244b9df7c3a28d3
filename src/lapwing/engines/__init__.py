"""One file per library, or family of our own kernels, that does the work; planner.py chooses among them."""
