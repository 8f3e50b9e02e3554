"""`python -m cuvilc` is `cuvilc`."""

from cuvilc.cli import entry

entry()
