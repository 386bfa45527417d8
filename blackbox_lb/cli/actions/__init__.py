"""What each command does once its options are read: loaded when it runs, and not for its help."""
