"""What each provider accepts, lists and limits."""
