"""Kernels of the tuner: Triton templates, a CUDA template, and the code that compiles and starts them."""
