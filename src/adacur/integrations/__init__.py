"""An index in the words of other libraries. Each module needs an extra; `bridge` is what they share."""
