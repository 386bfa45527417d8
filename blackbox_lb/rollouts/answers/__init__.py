"""What the model says at the places of given answers: lists of next tokens, asked for in the ways
that a profile allows.
"""
