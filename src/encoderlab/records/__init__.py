"""Records of files, read in one way for corpora and for tasks: opening, encoding, separators, quotes, line numbers."""
