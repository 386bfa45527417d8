"""The facts about each API: profiles, their schema, credentials and prices."""
