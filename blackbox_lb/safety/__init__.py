"""Safety: untrusted input is read within bounds, secrets and control characters are masked, files
are replaced as a whole.
"""
