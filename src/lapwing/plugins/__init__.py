"""lapwing inside other packages, by their own extension points."""
