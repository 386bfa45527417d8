"""A gallery of uses: each is collected, learned, judged beside its rivals and drawn by one
command.
"""
