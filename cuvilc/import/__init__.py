"""Importers: a foreign model file becomes a `Program` of `ai` operations. One format, one set of
files.

The package's name is a keyword: siblings use `from ._table import …`, and outside only driver.py
reaches in, by `import_module("cuvilc.import.registry")`, so that a format's library loads only
when that format comes.
"""
