"""A language model small enough that every quantity is exact, and a llama.cpp server for it."""
