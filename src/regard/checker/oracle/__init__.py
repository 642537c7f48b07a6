"""The oracle: questions, wirings of a module's weights, correct answers, and variants of attention."""
