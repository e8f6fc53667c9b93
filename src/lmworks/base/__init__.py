"""What every other package may use: configuration, errors, atomic storage, machine facts. No torch."""
