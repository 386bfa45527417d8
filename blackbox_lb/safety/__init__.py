"""Safety: untrusted input is read within limits, secrets and control characters are masked, and
files are replaced atomically.
"""
