"""Published results about attention, run again: `regard reproduce` lists them, and runs one.

Each result is one file that can be read and changed on its own. `catalogue` lists them, `record` is what a
run finds and its verdict, `chart` draws it, and `runs` runs a result and writes its files.
"""
