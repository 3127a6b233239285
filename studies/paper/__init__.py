"""What runs say about the paper: its claims, its tables and its figures.

python -m studies.paper results/lab     # writes results/lab/paper/
"""
