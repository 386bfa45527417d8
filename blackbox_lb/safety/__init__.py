"""What strangers wrote is read within bounds, and what must not be shown is not shown."""
