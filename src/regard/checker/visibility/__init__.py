"""How visible each mistake is, on the inputs of a check or on yours."""
