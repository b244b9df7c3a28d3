"""Libraries and algorithms for matrices over many devices; ``choice.py`` lists them."""
