"""HTTP services of strangers: models, rewards, judges and embeddings are asked in one way.

``service`` sends, names faults and tries again. ``retries`` decides which faults pass and how long
to wait. ``error_answers`` reads what a service answers at a fault. ``clients`` bounds every answer.
"""
