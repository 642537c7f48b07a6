"""Published results about attention, run again: `regard reproduce` lists them, and runs one.

Each result is one file that can be read and changed on its own; its words and sizes are an entry of
`results.toml`. `runs` lists them, runs one and writes its files, `record` is what a run finds and its
verdict, and `chart` draws it.
"""
