"""``python -m refsgd``."""

import sys

from refsgd.cli import main

if __name__ == "__main__":
    sys.exit(main())
