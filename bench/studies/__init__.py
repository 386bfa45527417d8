"""Studies that were made once: their tables are in docs/, their commands make them again."""
