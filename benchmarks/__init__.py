"""Programs that measure; each runs by itself: `python benchmarks/NAME.py`."""
