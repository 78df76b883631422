"""What an editor and `help` show of the public functions: each option by name, with its meaning."""

import inspect
import json
from collections.abc import Sequence

import keras
import public_names
import pytest

import keras_txf as txf

FUNCTIONS = dict(public_names.public_functions())
# What Keras takes for every layer; and the variables of a template, whose names its author chooses.
OPEN = {"layer": "kwargs", "template": "variables"}


def open_ended(function):
    """The names of the parameters that take any name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of a class of Python's own
        return []
    return [parameter.name for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_signature_hides_its_options_and_no_docstring_keeps_its_place_holder(name):
    function = FUNCTIONS[name]
    is_layer = inspect.isclass(function) and issubclass(function, keras.layers.Layer)
    calls_a_layer = name.endswith(("symbolic_call", "rematerialized_call"))
    known = [OPEN["layer"]] if is_layer or calls_a_layer else [OPEN["template"]] if ".ChatTemplate." in name else []
    known = [OPEN["template"]] if name == "text.conversations" else known
    known = ["named_shapes"] if name.endswith("compute_output_shape") else known  # by the names of a layer's inputs
    known = ["arguments"] if name.endswith("Block.compute_output_spec") else known  # the arguments of `call`
    assert open_ended(function) in ([], known)
    assert "{options}" not in (function.__doc__ or "")


def test_the_names_of_the_last_release_are_still_there():
    """CONTRIBUTING, "Names": an old name works for two minor versions, with a warning that gives the new one."""
    released = json.loads(public_names.FILE.read_text())
    assert len(released) > 300
    gone = [name for name in released if name not in FUNCTIONS]
    gone += [
        f"{name}({argument})"
        for name, arguments in released.items()
        for argument in set(arguments) - set(public_names.arguments(FUNCTIONS.get(name, lambda: None)))
    ]
    assert not gone


def test_options_of_a_task_are_those_of_its_builder():
    shown = inspect.signature(txf.tasks.TextClassifier.from_scratch).parameters
    known = inspect.signature(txf.models.encoder_classifier).parameters
    assert shown["dropout"].default == known["dropout"].default == 0.1
    # Left out: what a tokenizer decides, other inputs and outputs than those of the task, and arguments of the task.
    assert {*known} - {*shown} == {
        "num_classes", "pad_id", "token_types", "token_type_ids", "input_dim", "embedding",
        "return_hidden_states", "return_attention_scores", "name",
    }  # fmt: skip
    assert "dropout: dropout rate of the output of each sublayer, and" in txf.tasks.TextClassifier.from_scratch.__doc__


def test_options_of_load_are_those_of_builders_and_show_that_the_file_has_their_defaults():
    parameters = inspect.signature(txf.checkpoints.load).parameters
    assert repr(parameters["dropout"].default) == "..."
    known = {
        name
        for build in ("encoder_classifier", "token_classifier", "encoder_decoder", "decoder_generator", "image_encoder")
        for name in inspect.signature(getattr(txf.models, build)).parameters
    }
    words = {
        "attention_dropout",
        "feed_forward_dropout",
        "stochastic_depth",
        "embedding_dropout",
        "masked_id",
        "final_logit_soft_cap",
    }  # of the family's parts
    assert {*parameters} - known == {"path", "task", "ignore", "revision", "progress"} | words


def test_a_type_is_shown_without_the_list_of_each_block_alone():
    parameters = inspect.signature(txf.models.encoder).parameters
    assert parameters["dropout"].annotation is float and parameters["window"].annotation == int | None
    assert parameters["num_heads"].annotation != int | None  # of an argument everything is shown
    assert inspect.signature(txf.checkpoints.load).parameters["ignore"].annotation == Sequence[str]
    stops = inspect.signature(txf.tasks.TextGenerator.generate).parameters["stop_ids"].annotation
    assert stops == int | Sequence[int] | None


@pytest.mark.parametrize("name", ["pad_id", "num_classes", "return_hidden_states", "token_type_ids"])
def test_what_a_task_decides_is_no_option_of_it(name):
    with pytest.raises(ValueError, match=f"'{name}' is not an option of from_scratch"):
        txf.tasks.TextClassifier.from_scratch(["a fox"] * 9, ["a", "b", "a"] * 3, **{name: 1})


def test_a_name_of_hugging_face_is_refused_with_ours():
    with pytest.raises(ValueError, match="'hidden_dropout_prob' is not an option of encoder. Did you mean 'dropout'"):
        txf.models.encoder(9, 1, 8, 2, hidden_dropout_prob=0.1)
    with pytest.raises(ValueError, match="'language' is not an option of `generate`. Did you mean 'start_id'"):
        txf.models.decoder_generator(9, 1, 8, 2).generate([[3]], language="en")


@pytest.mark.parametrize("name", ["WordPiece", "SentencePiece", "BytePair", "Character"])
def test_a_tokenizer_of_a_subclass_is_made_with_the_options_of_the_subclass(name):
    base = getattr(txf.text, f"{name}Tokenizer")

    class Fixed(base):
        def __init__(self, vocabulary, *args, **kwargs):
            super().__init__(vocabulary, *args, padding_side="left", **kwargs)

    class Changed(base):
        def __init__(self, vocabulary, *args, padding_side="left", **kwargs):
            super().__init__(vocabulary, *args, padding_side=padding_side, **kwargs)

    size = {"BytePair": 280}.get(name, 20)
    for cls in (Fixed, Changed):
        assert cls.train(["a fox", "two foxes"] * 9, size).padding_side == "left"
    assert Changed.train(["a fox", "two foxes"] * 9, size, padding_side="right").padding_side == "right"


def test_a_subclass_of_word_piece_has_a_vocabulary_and_a_file_of_its_own_defaults(tmp_path):
    class Cased(txf.text.WordPieceTokenizer):
        def __init__(self, vocabulary, lowercase=False, **kwargs):
            super().__init__(vocabulary, lowercase=lowercase, **kwargs)

    tokenizer = Cased.train(["Fox Fox Fox"] * 9, 20)
    assert not tokenizer.lowercase and tokenizer.token_to_id("Fox")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nFox\n", encoding="utf-8")
    assert Cased.from_file(tmp_path / "vocab.txt").tokenize("Fox fox").numpy().tolist() == [2, 1]


def test_a_misspelt_option_of_a_tokenizer_is_refused_before_the_training():
    def texts():
        raise AssertionError
        yield

    with pytest.raises(ValueError, match="'lowercse' is not an option of WordPieceTokenizer. Did you mean 'lowercase'"):
        txf.text.WordPieceTokenizer.train(texts(), 20, lowercse=True)
    named = txf.text.WordPieceTokenizer.train(["a fox"] * 9, vocab_size=20, name="named", dtype="float32")
    assert named.name == "named"


def test_options_of_a_layer_are_given_by_name():
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments but 3 were given"):
        txf.layers.EncoderBlock(2, 8)
