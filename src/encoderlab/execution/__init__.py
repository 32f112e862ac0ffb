"""Runs independent pieces of work: jobs in, results out."""
