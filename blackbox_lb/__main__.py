"""``python -m blackbox_lb`` is ``blb``."""

from __future__ import annotations

from blackbox_lb.cli import main

main()
