"""Two texts in one row: what stands between them, and whether token types tell them apart."""

from keras_txf.checkpoints.building import has_token_types
from keras_txf.reading import file_of, read_json, reading
from keras_txf.tasks.columns import strings
from keras_txf.text.datasets import limit, separator_tokens
from keras_txf.text.folder_files import read_tokenizer_config

TOKEN_TYPES = {"token_type_ids": True, "token_types": 2}  # options of a new model
# Classes of tokenizers whose models were trained with token types. Transformers 4 gave them for all of these classes,
# transformers 5 leaves out those of ALBERT and RemBERT.
TYPED = {
    "AlbertTokenizer", "BertTokenizer", "ConvBertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer",
    "ElectraTokenizer", "FNetTokenizer", "MobileBertTokenizer", "RemBertTokenizer", "RoFormerTokenizer",
    "SqueezeBertTokenizer",
}  # fmt: skip
TWO_SEPARATORS = {
    "BartTokenizer", "CamembertTokenizer", "MPNetTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer",
}  # fmt: skip
CLASSES = {  # `model_type` -> the class, where tokenizer_config.json names none, or one of any model
    "albert": "AlbertTokenizer", "bart": "BartTokenizer", "bert": "BertTokenizer", "camembert": "CamembertTokenizer",
    "convbert": "ConvBertTokenizer", "deberta": "DebertaTokenizer", "deberta-v2": "DebertaV2Tokenizer",
    "electra": "ElectraTokenizer", "fnet": "FNetTokenizer", "gte": "XLMRobertaTokenizer",
    "mobilebert": "MobileBertTokenizer", "mpnet": "MPNetTokenizer", "nomic_bert": "BertTokenizer",
    "rembert": "RemBertTokenizer", "roberta": "RobertaTokenizer", "roformer": "RoFormerTokenizer",
    "squeezebert": "SqueezeBertTokenizer", "xlm-roberta": "XLMRobertaTokenizer",
}  # fmt: skip
OF_ANY_MODEL = ("", "PreTrainedTokenizer", "TokenizersBackend")


def pair_format(folder, options):
    """Returns options of `checkpoints.load`, those of the caller among them, and the separator or None.

    Args:
        folder: of the checkpoint.
        options: of the caller.
    """
    config, values = read_tokenizer_config(folder), read_json(file_of(folder, "config.json"))
    name = (config.get("tokenizer_class") or "").removesuffix("Fast")
    name = CLASSES.get(values.get("model_type"), "") if name in OF_ANY_MODEL else name
    inputs = config.get("model_input_names")
    between, second_type = of_tokenizer_json(folder)
    typed = name in TYPED if inputs is None else "token_type_ids" in inputs
    if typed and second_type != 0 and has_token_types(values, options.get("ignore", ())):
        options = {"token_type_ids": True, **options}
    return options, between or (["</s>", "</s>"] if name in TWO_SEPARATORS else None)


def of_tokenizer_json(folder):
    """Returns the tokens between two texts and the type of the second one's; (None, None) where no file says it."""
    path = file_of(folder, "tokenizer.json")
    processor = read_json(path).get("post_processor") if path.is_file() else None
    with reading(path):
        return of_pair(processor)


def of_pair(processor):
    """Returns the tokens between two texts and the second text's type, as a post-processor of `tokenizers` has them."""
    kind = (processor or {}).get("type")
    if kind == "Sequence":
        found = [of_pair(inner) for inner in processor["processors"]]
        return next((pair for pair in found if pair[0] is not None), (None, None))
    if kind == "RobertaProcessing":
        return [processor["sep"][0]] * 2, 0
    if kind == "BertProcessing":
        return [processor["sep"][0]], 1
    if kind != "TemplateProcessing":
        return None, None
    names = [part.get("SpecialToken", {}).get("id") for part in processor["pair"]]
    first = names.index(None)
    second = names.index(None, first + 1)
    return names[first + 1 : second], processor["pair"][second]["Sequence"]["type_id"]


def special_tokens(tokenizer, separator, max_length):
    """Returns the number of special tokens of a pair. Raises ValueError if `max_length` leaves no room for texts."""
    number = len(tokenizer.start) + len(separator_tokens(tokenizer, separator)) + len(tokenizer.end)
    limit(tokenizer, max_length, number, texts=2)
    return number


def texts_of_pairs(task, first, second, columns):
    """The texts of the first two columns of a task's class."""
    columns = columns[:2] if isinstance(columns, (list, tuple)) and len(columns) == 3 else columns
    names = dict([*task.columns.items()][:2])
    read = task._read(first, [second], columns, names)
    return [one for name, column in zip(names, read) for one in strings(name, column)]
