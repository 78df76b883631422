"""Two texts in one row: the format of a checkpoint; questions and contexts, in windows and in SQuAD files.

SQuAD: {"data": [{"paragraphs": [{"context", "qas": [{"question", "answers"}]}]}]}.

Legend: T tokens of a context, K tokens of the longest answer, L length of a row.
"""

import dataclasses

import numpy as np

from keras_txf.checkpoints.building import has_token_types
from keras_txf.checks import bad_argument, short_repr
from keras_txf.disk import file_of, read_json, reading
from keras_txf.tasks.columns import one_or_many, strings
from keras_txf.text.datasets import limit, separator_tokens
from keras_txf.text.folder_files import read_tokenizer_config

SQUAD = (".json",)
TOKEN_TYPES = {"token_type_ids": True, "token_types": 2}  # options of a new model
# Classes of tokenizers whose models were trained with token types. Transformers 4 returned token types for all of them,
# transformers 5 does not for ALBERT and RemBERT.
TYPED = {
    "AlbertTokenizer", "BertTokenizer", "ConvBertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer",
    "ElectraTokenizer", "FNetTokenizer", "MobileBertTokenizer", "RemBertTokenizer", "RoFormerTokenizer",
    "SqueezeBertTokenizer",
}  # fmt: skip
TWO_SEPARATORS = {
    "BartTokenizer", "CamembertTokenizer", "MPNetTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer",
}  # fmt: skip
CLASSES = {  # `model_type` -> the class, if tokenizer_config.json names no class of a model
    "albert": "AlbertTokenizer", "bart": "BartTokenizer", "bert": "BertTokenizer", "camembert": "CamembertTokenizer",
    "convbert": "ConvBertTokenizer", "deberta": "DebertaTokenizer", "deberta-v2": "DebertaV2Tokenizer",
    "electra": "ElectraTokenizer", "fnet": "FNetTokenizer", "gte": "XLMRobertaTokenizer",
    "mobilebert": "MobileBertTokenizer", "mpnet": "MPNetTokenizer", "nomic_bert": "BertTokenizer",
    "rembert": "RemBertTokenizer", "roberta": "RobertaTokenizer", "roformer": "RoFormerTokenizer",
    "squeezebert": "SqueezeBertTokenizer", "xlm-roberta": "XLMRobertaTokenizer",
}  # fmt: skip
OF_ANY_MODEL = ("", "PreTrainedTokenizer", "TokenizersBackend")


def pair_format(folder, options):
    """Returns the options of `checkpoints.load`, with the checkpoint's token types, and the separator or None.

    Args:
        folder: folder of the checkpoint.
        options: the caller's options.
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
    """Returns the tokens between two texts and the token type of the second text; (None, None) if no file tells."""
    path = file_of(folder, "tokenizer.json")
    processor = read_json(path).get("post_processor") if path.is_file() else None
    with reading(path):
        return of_pair(processor)


def of_pair(processor):
    """Returns the tokens between two texts and the second text's type, from a post-processor of `tokenizers`."""
    type_ = (processor or {}).get("type")
    if type_ == "Sequence":
        pairs = [of_pair(inner) for inner in processor["processors"]]
        return next((pair for pair in pairs if pair[0] is not None), (None, None))
    if type_ == "RobertaProcessing":
        return [processor["sep"][0]] * 2, 0
    if type_ == "BertProcessing":
        return [processor["sep"][0]], 1
    if type_ != "TemplateProcessing":
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


def paired_texts(**arguments):
    """Returns the texts of two arguments as lists, and a function that unpacks the answer to a single pair."""
    first_name, second_name = arguments
    (first, unpack), (second, _) = (one_or_many(name, texts) for name, texts in arguments.items())
    if len(first) != len(second):
        raise bad_argument(second_name, f"hold as many texts as `{first_name}`, {len(first)}", len(second))
    return first, second, unpack


def texts_of_pairs(task, first, second, columns):
    """Returns the texts of the first two columns of a task's class, for a vocabulary."""
    columns = columns[:2] if isinstance(columns, (list, tuple)) and len(columns) == 3 else columns
    names = dict([*task.columns.items()][:2])
    read = task._read(first, [second], columns, names)
    return [one for name, column in zip(names, read) for one in strings(name, column)]


@dataclasses.dataclass(frozen=True)
class Window:
    """A part of a context in a row.

    Args:
        example: the index of the question.
        first, count: the first token of the context in the row, and the number of its tokens there.
        before: the number of tokens in the row before the context.
    """

    example: int
    first: int
    count: int
    before: int

    def position(self, token):
        """The position in the row of a token of the context, or None."""
        return self.before + token - self.first if 0 <= token - self.first < self.count else None


class AnswerWindows:
    """Makes rows of `start`, a question, the separator, a part of the context, `end`.

    Args:
        tokenizer: the tokenizer.
        max_length: number of tokens of a row. A question has at most half of the tokens that are not special.
        overlap: number of tokens that a part of a context shares with the next part.
        separator: list of special tokens between question and context.
        token_types: whether rows have token type ids, 0 up to the separator and 1 from the context on.
    """

    def __init__(self, tokenizer, max_length, overlap, separator, token_types):
        self.tokenizer, self.overlap, self.token_types = tokenizer, overlap, token_types
        self.start, self.between, self.end = (
            np.array([tokenizer.special_tokens[token] for token in tokens], "int32")
            for tokens in (tokenizer.start, separator, tokenizer.end)
        )
        self.room = max_length - len(self.start) - len(self.between) - len(self.end)

    def rows(self, questions, contexts):
        """Returns the rows, their windows, and for each question the offsets (T, 2) of its context's tokens."""
        tokens = self._tokens(contexts)
        asked = self._tokens(questions)
        rows, windows = [], []
        for example, (question, context) in enumerate(zip(questions, contexts)):
            head = np.concatenate([self.start, asked[question][0][: self.room // 2], self.between])
            room = self.room + len(self.start) + len(self.between) - len(head)
            ids = tokens[context][0]
            for first in starts(len(ids), room, self.overlap):
                part = ids[first : first + room]
                rows.append(self._row(head, np.concatenate([part, self.end])))
                windows.append(Window(example, first, len(part), len(head)))
        return rows, windows, [tokens[context][1] for context in contexts]

    def _tokens(self, texts):
        distinct = list(dict.fromkeys(texts))
        return dict(zip(distinct, self.tokenizer.tokenize_with_offsets(distinct)))

    def _row(self, head, tail):
        ids = np.concatenate([head, tail])
        if not self.token_types:
            return ids
        return {"token_ids": ids, "token_type_ids": np.repeat([0, 1], [len(head), len(tail)]).astype("int32")}


def starts(length, room, overlap):
    """Returns the first tokens of windows of `room` tokens. Neighbours share `overlap`; the last may be shorter."""
    return range(0, max(length - overlap, 1), room - overlap) if length > room else [0]


def tokens_of(offsets, start, end):
    """Returns the first and the last token of the characters from `start` to `end`, or None."""
    inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def targets(window, span):
    """Returns the positions of an answer's first and last token in a row; 0 and 0 if the row lacks the answer."""
    positions = [window.position(token) for token in span] if span is not None else [None]
    start, end = (0, 0) if None in positions else positions
    return {"start_logits": np.int32(start), "end_logits": np.int32(end)}


def best_spans(windows, logits, context, offsets, longest, k, null_threshold):
    """Finds the best answers in a context.

    The score of a span is the sum of the logits of its first and its last token; the larger sum if two windows hold the
    span. The score of no answer is the smallest sum of both logits of a row's first token.

    Args:
        windows, logits: the windows of the context, and the logits (L, 2) of each.
        context, offsets: the context, and the offsets of its tokens, int (T, 2).
        longest: number K of tokens of the longest answer.
        k: number of answers.
        null_threshold: the least lead of no answer's score over the best span's score; None if every question has an
            answer.

    Returns:
        A list of at most `k` dicts of `text`, `start`, `end` and `score`, the best first.
    """
    scores = _span_scores(windows, logits, context, offsets, longest)
    flat = scores.ravel()
    null = min((float(rows[0].astype("float64").sum()) for rows in logits), default=0.0)
    candidates = flat if null_threshold is None else np.append(flat, null)
    total = np.logaddexp.reduce(candidates) if len(candidates) else 0.0
    scores_of_spans = {}
    for index in np.argsort(-flat, kind="stable"):
        if len(scores_of_spans) == k or not np.isfinite(flat[index]):
            break
        first, more = divmod(int(index), scores.shape[1])
        start, end = _without_blanks(context, int(offsets[first, 0]), int(offsets[first + more, 1]))
        scores_of_spans.setdefault((start, end), flat[index])  # tokens within a character make the same span
    ranked = [(score, score, *span) for span, score in scores_of_spans.items()]
    if null_threshold is not None:
        ranked = sorted([*ranked, (null - null_threshold, null, 0, 0)], key=lambda one: -one[0])[:k]
    return [
        {"text": context[start:end], "start": start, "end": end, "score": float(np.exp(score - total))}
        for _, score, start, end in ranked
    ]


def _span_scores(windows, logits, context, offsets, longest):
    """Returns the scores of the spans of 1 to K tokens from each token on, float64 (T, K); -inf for no span."""
    solid = np.array([bool(context[start:end].strip()) for start, end in offsets], bool)
    count = len(offsets)
    longest = min(longest, count)
    scores = np.full((count, longest), -np.inf)
    for window, rows in zip(windows, logits):
        first, last = rows[window.before : window.before + window.count].astype("float64").T
        for more in range(min(longest, window.count)):
            part = scores[window.first : window.first + window.count - more, more]
            np.maximum(part, first[: window.count - more] + last[more:], out=part)
    ends = np.minimum(np.arange(count)[:, None] + np.arange(longest), count - 1)
    scores[~(solid[:, None] & solid[ends])] = -np.inf
    return scores


def _without_blanks(text, start, end):
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


def read_squad(path):
    """Returns the questions, the contexts and the answers of a file of SQuAD 1.1 or 2.0.

    The answers of a question are a dict of two lists, `text` and `answer_start`. Both are empty for a question without
    an answer: "plausible answers" do not count.

    Raises:
        ValueError: a missing file, or a file in another format.
    """
    content, shown = read_json(path, "questions"), short_repr(str(path))
    try:
        items = [
            (item["question"], paragraph["context"], _columns(item["answers"]))
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for item in paragraph["qas"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{shown} must be in SQuAD's format, data > paragraphs > context, qas > question, answers > text, "
            f"answer_start; received another format: {type(error).__name__} {error}."
        ) from None
    if not items:
        raise ValueError(f"`questions` must hold at least one question; received none in {shown}.")
    return [list(column) for column in zip(*items)]


def _columns(answers):
    return {"text": [one["text"] for one in answers], "answer_start": [one["answer_start"] for one in answers]}


def answers_of(values, contexts):
    """Returns the list of answers of each question, (text, index of its first character in the context).

    Args:
        values: for each question a text, "" for no answer; a list of texts; or a dict of lists `text` and
            `answer_start`. A text alone means its first occurrence in the context.
        contexts: list of the texts that hold the answers.

    Raises:
        ValueError: another value, or an answer that is not in the context.
    """
    return [_answers(value, context, index) for index, (value, context) in enumerate(zip(values, contexts))]


def _answers(value, context, index):
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
    else:
        texts, starts = ([value] if value else []) if isinstance(value, str) else value, None
    texts, starts = (one.tolist() if hasattr(one, "tolist") else one for one in (texts, starts))
    are_texts = isinstance(texts, (list, tuple)) and all(isinstance(text, str) for text in texts)
    if starts is None and are_texts and not isinstance(value, dict):
        starts = [context.find(text) for text in texts]
    are_starts = isinstance(starts, (list, tuple)) and all(type(start) is int for start in starts)
    if not are_texts or not are_starts or len(texts) != len(starts):
        must = "hold a string, a list of strings, or a dict of lists `text` and `answer_start`"
        raise bad_argument("answers", must, value, index)
    for text, start in zip(texts, starts):
        if not text.strip() or start < 0 or context[start : start + len(text)] != text:
            where = "" if start < 0 else f" from character {start} on"
            raise ValueError(
                "`answers` must be parts of their contexts, and not blank; received "
                f"{short_repr(text)} at index {index}, which the context does not have{where}."
            )
    return list(zip(texts, starts))
