"""``python -m refsgd``."""

import sys

from refsgd.cli import main

sys.exit(main())
