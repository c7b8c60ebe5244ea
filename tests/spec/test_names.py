import pytest

from mptexp.spec import names


@pytest.mark.parametrize(
    "name",
    [
        *names.DATASETS,
        "folder:my images",
        "idx:~/mnist",
        "mnist",
        "imagenette/320px-v2",
        "mnist:3.*",
    ],
)
def test_names_of_datasets_stay_as_they_are(name):
    assert names.known_dataset(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("digitz", "did you mean digits?"),
        ("imagenete/320px", "did you mean imagenette?"),
        ("folder:", "folder:PATH"),
        ("idx: ", "idx:PATH"),
        ("", "^digits, .*, folder:PATH"),
    ],
)
def test_an_unknown_dataset_is_refused_with_what_is_allowed(name, said):
    with pytest.raises(ValueError, match=said):
        names.known_dataset(name)


@pytest.mark.parametrize("name", [*names.MODELS, "my_models:build", "package.module:f"])
def test_names_of_models_stay_as_they_are(name):
    assert names.known_model(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet5", "did you mean resnet50?"),
        ("a:b:c", "or module:function"),
        ("my models:f", "^key"),
    ],
)
def test_an_unknown_model_is_refused_with_what_is_allowed(name, said):
    with pytest.raises(ValueError, match=said):
        names.known_model(name)
