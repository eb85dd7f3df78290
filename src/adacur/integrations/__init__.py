"""An index in the words of other libraries. Each module needs its own extra, and imports its host only when used."""
