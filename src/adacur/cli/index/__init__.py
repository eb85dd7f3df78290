"""Commands that change an index, copy it or check it."""
