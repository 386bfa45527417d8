"""The limits of the proxy, which load nothing: the command's help shows them."""

MAX_BODY = 16 * 2**20
"""Largest request body, in bytes."""
TIMEOUT = 600.0
"""Seconds of silence before the upstream is abandoned."""
GRACE = 30.0
"""Seconds to finish the answers under way when the proxy stops; then they are cut."""
IDLE = 75.0
"""Seconds that a client's connection may stay without a whole head of a request, and a body without
a byte; nginx's keepalive_timeout."""
PREFIX = "/v1"
"""The path of this proxy that corresponds to the upstream's base URL."""
