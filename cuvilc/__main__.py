"""`python -m cuvilc` is `cuvilc`."""

import sys

from cuvilc.cli import main

sys.exit(main())
