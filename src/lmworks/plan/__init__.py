"""What a model will cost, by arithmetic alone: memory, FLOPs, time. No torch."""
