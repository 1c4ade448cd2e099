"""Benchmarks: `python -m bench`. What each measures is said in its own file; tests assert no speed."""
