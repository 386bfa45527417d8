"""The action of each command, after its options are read: loaded when it runs, and not for its
help.
"""
