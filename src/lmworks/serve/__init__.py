"""Text from models: sampling, generation and chat. No torch at import."""
