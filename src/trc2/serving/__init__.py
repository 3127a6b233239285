"""`trc2 serve`: a model behind OpenAI's HTTP interface."""
