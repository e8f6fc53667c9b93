"""Raw text to token batches: read documents, pack them into shards, load batches. No torch."""
