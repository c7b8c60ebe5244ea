"""Images and labels: datasets, decoding, the cache, the stream of batches."""
