"""Sending a bias with every request: clients, batch files, the proxy, and vLLM."""
