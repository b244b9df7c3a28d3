"""The benchmark: checks the answer, then times lapwing and its peers side by side. Nothing below imports it."""
