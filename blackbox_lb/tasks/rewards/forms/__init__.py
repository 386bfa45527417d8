"""The forms of a reward: each module here is one, or a few alike, and its ``FORMS`` are all that
the registry and the help know of it.
"""
