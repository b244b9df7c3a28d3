"""The ready-made analyses. Each one is a class derived from `lapwing.insitu.Analysis`."""
