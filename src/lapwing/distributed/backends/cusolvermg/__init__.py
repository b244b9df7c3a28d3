"""cuSOLVERMg: matrices over the GPUs of one process."""
