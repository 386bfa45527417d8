"""Goldens: the numbers and the requests of fits and evaluations against a model whose every
probability is known. A rebuilding may move names and files, and none of these.
"""
