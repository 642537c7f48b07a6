"""The pictures of lessons 13 to 17, on long texts: narrow, so that their words can be read on a phone."""
