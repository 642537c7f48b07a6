"""The data that the page shows: captures, tiles, thumbnails, steps and what caches keep."""
