"""The judges of the lessons, one file each, whose `TASKS` say what is judged."""
