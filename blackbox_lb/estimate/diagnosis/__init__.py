"""The reasons why a fit helped or not: findings in plain words, each with its numbers and
remedy.
"""
