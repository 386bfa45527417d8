"""A request as the gateway reads and checks it."""
