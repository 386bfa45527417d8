"""Measurements on a machine with a GPU, vLLM and no internet, that is there for half an hour:
resumable, and cut off cleanly.
"""
