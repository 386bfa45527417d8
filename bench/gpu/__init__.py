"""Pages of the gallery with a model on a GPU that is there for half an hour: resumable, and cut off
cleanly.
"""
