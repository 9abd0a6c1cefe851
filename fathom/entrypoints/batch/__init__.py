"""Offline batches: a file of OpenAI requests in, a file of answers out.

Each row is asked of the server's own application, in this process and without a socket: what a row may say, and what
comes back, is what `fathom serve` takes and gives.
"""
