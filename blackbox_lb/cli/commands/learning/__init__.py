"""Commands that draw, score, learn, choose and judge."""
