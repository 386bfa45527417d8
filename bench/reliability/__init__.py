"""What survives faults: killed processes, and hours of disturbed answers."""
