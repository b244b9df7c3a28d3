"""The interface to the solver: the hub and its C bridge, fields, meshes, streams, ranks and checkpoints."""
