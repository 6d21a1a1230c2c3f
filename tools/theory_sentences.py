"""The sentences of docs/theory that repeat raw figures."""
SENTENCES: dict = {}
