"""All contact with a model: the wire, the transport with its limits, one session, the embedded
engine, and drift.
"""
