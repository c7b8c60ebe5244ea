"""A profile of any origin as one table of operations, and what arithmetic each kernel used."""
