"""The public operations, one file each."""
