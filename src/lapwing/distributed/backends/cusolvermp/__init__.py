"""cuSOLVERMp on GPUs, one process for each, connected by NCCL."""
