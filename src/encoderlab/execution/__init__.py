"""Where independent pieces of work run: jobs in, results out."""
