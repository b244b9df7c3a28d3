"""One file per library that can do a product."""
