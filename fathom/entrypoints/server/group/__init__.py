"""Several processes that serve one engine: the parent, which owns engine and port, and its fronts, which speak HTTP."""
