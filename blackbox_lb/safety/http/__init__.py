"""HTTP services of strangers: models, rewards, judges and embeddings are asked in one way.

``service`` sends, names faults and tries again; ``retries`` says which faults pass and how long to
wait; ``error_answers`` reads what a service says of a fault; the two clients bound every answer.
"""
