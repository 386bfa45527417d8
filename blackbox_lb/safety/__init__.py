"""What strangers wrote is read within bounds, what must not be shown is not shown, and a file is replaced whole or not at all."""
