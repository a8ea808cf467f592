"""Topic in, words out: drivers of one consumer group, of which one is killed."""
