"""What the page shows, as plain data: captures, tiles, thumbnails, steps and evictions."""
