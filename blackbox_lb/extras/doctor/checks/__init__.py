"""What the self-test checks, one module a claim of the profile."""
