"""From a request body to the bytes of an answer: one HTTP channel, its retries, rate limits and
error answers.
"""
