"""Questions with few options: what is asked, how servers of decisions speak, and how a chat model
is asked the same.
"""
