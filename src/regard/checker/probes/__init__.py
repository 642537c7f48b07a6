"""What is looked at, by theme. Each probe asks the subject some questions and writes down what it found."""
