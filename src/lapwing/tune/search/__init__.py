"""Which candidate to try next."""
