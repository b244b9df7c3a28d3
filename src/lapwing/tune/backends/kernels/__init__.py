"""Kernels of the tuner: Triton templates, a CUDA template, and what compiles and starts them."""
