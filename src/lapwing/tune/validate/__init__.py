"""Prove that a candidate is right and faster: probes, comparison with the default, results and report."""
