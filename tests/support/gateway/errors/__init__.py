"""The providers' own words for what they refuse."""
