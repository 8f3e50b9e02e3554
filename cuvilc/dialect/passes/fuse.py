from __future__ import annotations

NAME = "fuse"
VERSION = 1


def run(program, context):
    pass
