"""The benchmarks behind ``scripts/bench``: data, runners (each in a process of its own), cases, tables.

A new case is one module in ``cases`` and one line in its registry; a new runner likewise in ``runners``.
"""
