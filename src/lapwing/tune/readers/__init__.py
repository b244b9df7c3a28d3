"""One file per kind of log."""
