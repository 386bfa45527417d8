"""A reverse proxy that adds the bias, for any language and tool."""
