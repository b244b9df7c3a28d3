"""Matrices larger than memory: blocks stream from host memory or disk through a limited memory, on a GPU or on the CPU."""
