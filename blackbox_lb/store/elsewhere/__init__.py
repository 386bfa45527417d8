"""Rollouts outside one file: Parquet out and in, and several stores read as one."""
