"""Rows of data: files, Hugging Face data sets, and the columns that hold prompts and answers."""
