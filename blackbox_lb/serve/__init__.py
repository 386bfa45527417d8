"""Serving a bias to clients that are not Python: a reverse proxy for any API, a logits processor
inside vLLM.
"""
