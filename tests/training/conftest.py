"""What several tests of the training use."""

import pytest


@pytest.fixture
def policy():
    """Sets Keras's dtype policy for one test."""
    import keras

    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy("float32")
