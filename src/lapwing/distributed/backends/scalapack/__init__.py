"""ScaLAPACK over MPI."""
