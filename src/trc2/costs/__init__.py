"""What a model costs: parameters, memory, arithmetic."""
