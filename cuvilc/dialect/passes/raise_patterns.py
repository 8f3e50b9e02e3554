from __future__ import annotations

NAME = "raise-patterns"
VERSION = 1


def run(program, context):
    pass
