"""For scripts that run in processes of their own, without pytest."""


def raises(kind, words, call):
    """The error that ``call`` raises; its message must contain ``words``."""
    try:
        call()
    except kind as error:
        assert words in str(error), str(error)
        return error
    raise AssertionError(f"no {kind.__name__}")
