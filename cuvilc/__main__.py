"""`python -m cuvilc` is `cuvilc`."""

from cuvilc.cli import command

command()
