"""Damaged and hostile models: each must become a package or a diagnostic, in bounded time and
memory.
"""
