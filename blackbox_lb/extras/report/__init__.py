"""The result of a run as one page, for readers without a terminal."""
