"""The doctor: a live self-test that proves or disproves what a provider's profile claims, in under 100 cheap requests."""
