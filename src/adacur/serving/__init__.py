"""Searches over HTTP: the server, and the page that shows a search as it happens."""
