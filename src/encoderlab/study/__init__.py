"""Studies: arms that differ in what a file says, trained at equal cost over seeds, measured and compared."""
