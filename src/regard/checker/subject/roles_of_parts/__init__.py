"""Which part of a module does what: projections, roles of inputs, products on the way."""
