"""The benchmark: checks the answers, then times lapwing and its peers side by side. Lower layers do not import it."""
