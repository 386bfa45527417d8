"""What came out of a run, as one page for somebody who will never open a terminal."""
