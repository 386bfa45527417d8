"""The doctor: a live self-test that proves or disproves what a provider's profile claims, in at
most 119 cheap requests.
"""
