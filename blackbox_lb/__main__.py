"""``python -m blackbox_lb`` is ``blb``."""

from blackbox_lb.cli import main

main()
