"""The judges of the lessons, one file each: `TASKS` says what is judged, `USUAL_MISTAKES` what is planted."""
