"""The checker behind the shape annotations: an int is a float, as everywhere in Python's type system."""

from beartype import BeartypeConf, beartype

checker = beartype(conf=BeartypeConf(is_pep484_tower=True))
