"""The bias file, the limits that providers set it, and its export to other tools. No numpy is
loaded here.
"""
