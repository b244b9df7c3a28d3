"""The side that meets the solver: the hub and its C bridge, fields, meshes, streams, ranks and checkpoints."""
