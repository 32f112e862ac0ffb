"""Adapt a model to the text of a domain: continued pretraining, measured before and after."""
