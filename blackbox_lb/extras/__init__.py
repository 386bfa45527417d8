"""What is not needed to learn, judge and send a bias, one folder each; the core imports none."""
