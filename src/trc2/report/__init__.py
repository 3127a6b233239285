"""Run folders in. Tables, pictures and sentences out."""
