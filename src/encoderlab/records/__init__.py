"""Records of files, read in the same way for corpora and tasks: opening, encoding, separators, quotes, line numbers."""
