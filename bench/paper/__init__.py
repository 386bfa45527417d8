"""``python -m bench.paper``, the paper's tables run again: its settings as files, its layout, and
our numbers beside its own.
"""
