"""Studies: arms with different settings, trained at equal cost over seeds, measured and compared."""
