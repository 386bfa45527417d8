"""Collection by batch: requests and answers go in files, hours apart and at a lower price."""
