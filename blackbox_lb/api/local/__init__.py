"""The embedded engine: llama.cpp in a process of its own, and the model files that it serves."""
