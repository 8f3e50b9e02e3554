"""cuvilc: compiles models ahead of time into self-contained packages."""

__version__ = "0.1.0"
