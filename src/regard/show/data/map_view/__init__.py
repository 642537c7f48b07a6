"""What the Map view shows: tiles of a map, thumbnails, and the numbers in which they are sent."""
