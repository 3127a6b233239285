"""Run folders in; tables, pictures and sentences out."""
