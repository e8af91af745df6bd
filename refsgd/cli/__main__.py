"""``python -m refsgd.cli``."""

import sys

from refsgd.cli import main

sys.exit(main())
