"""Studies that answered one question each, kept so that the answer can be measured again."""
