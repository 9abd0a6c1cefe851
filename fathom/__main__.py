"""`python -m fathom`: the same as the `fathom` command."""

from __future__ import annotations

import sys

from fathom.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
