"""The bias file, the limits of providers on it, and its export to other tools.

This room loads no numpy.
"""
