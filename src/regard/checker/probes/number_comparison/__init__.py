"""How accurate a right output is: precision, gradients, extreme scores, weights and lse."""
