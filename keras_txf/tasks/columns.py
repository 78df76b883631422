"""Columns of texts and labels, from lists, arrays, data frames, data sets and files."""

import importlib
import math
import os
import pathlib
import re

import numpy as np

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.disk import parse_json

LARGEST = float(np.finfo("float32").max)
SEPARATED = {".csv": {}, ".tsv": {"sep": "\t", "quoting": 3}}  # TSV has no quotes: a quotation mark is text


def read_columns(data, others, columns):
    """Returns the columns of a data set in memory, a list for each name.

    Args:
        data: the first column, or a table of all columns. A table is the path of a .csv, .tsv, .jsonl or .parquet file;
            the path of a .txt file for a single column; a dict of columns, a `pandas.DataFrame`, a `datasets.Dataset`,
            or a `tf.data.Dataset` of tuples in the order of `columns` or of dicts. All values of a .csv or .tsv file
            are strings. Only "labels" are integers, if each label is an integer.
        others: the other columns; None for a column that `data` holds.
        columns: dict of names of the caller's arguments -> names of the columns in a table.

    Raises:
        ValueError: a missing file or another type of file, a missing column, columns that are empty or differ in
            length, both a table and further columns.
    """
    first = next(iter(columns))
    table = _table(first, data, columns)
    if table is None:
        values_of = dict(zip(columns, [data, *others]))
        absent = [name for name, values in values_of.items() if values is None]
        if absent and hasattr(data, "__iter__"):
            table = (
                f"a table (a file, a data frame, a data set, a dict of columns) with {short_repr([*columns.values()])}"
            )
            raise bad_argument(absent[0], f"be given where `{first}` is not {table}", None)
        values_of = {name: _as_list(name, values) for name, values in values_of.items()}
    else:
        extra = [name for name, values in zip(list(columns)[1:], others) if values is not None]
        if extra:
            raise ValueError(f"`{extra[0]}` must be left out where `{first}` is a table of all columns; received both.")
        values_of = {name: _without_gaps(name, column, table(column)) for name, column in columns.items()}
    is_path = isinstance(data, (str, os.PathLike))
    if "labels" in values_of and is_path and os.fspath(data).lower().endswith((".csv", ".tsv")):
        values_of["labels"] = _integers(values_of["labels"])
    lengths = {name: len(values) for name, values in values_of.items()}
    if len(set(lengths.values())) > 1 or not all(lengths.values()):
        raise ValueError(f"{_quoted(columns)} must be of one length, at least 1; received {lengths}.")
    return list(values_of.values())


def named_columns(columns, known):
    """Returns the dict `columns` of `read_columns`, with the caller's names instead of the names in `known`."""
    names = list(known.values()) if columns is None else [columns] if isinstance(columns, str) else columns
    if not isinstance(names, (list, tuple)) or len(names) != len(known):
        must = f"be the names of {len(known)} columns, for {list(known)} in this order"
        raise bad_argument("columns", must, columns)
    return dict(zip(known, checks.strings("columns", list(names))))


def is_file(data, suffixes):
    """Whether `data` is the path of a file that ends in one of `suffixes`."""
    return isinstance(data, (str, os.PathLike)) and pathlib.Path(data).suffix.lower() in suffixes


def strings(name, values):
    """Returns a list of str. Raises ValueError for another value, such as a missing value of a table."""
    values = _as_list(name, values)
    for index, value in enumerate(values):
        if isinstance(value, list):
            must = "hold one string at each index (`dataset.unbatch()` undoes a batch)"
            raise bad_argument(name, must, value, index)
        if not isinstance(value, str):
            raise bad_argument(name, "hold strings", value, index)
        if not value.isascii() and re.search("[\ud800-\udfff]", value):
            raise bad_argument(name, "hold Unicode, without half of a surrogate pair", value, index)
    return values


def numbers(name, values):
    """Returns a list of floats that are finite in float32; a file may hold numbers as text."""
    floats = []
    for index, value in enumerate(values):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not abs(number) <= LARGEST:
            raise bad_argument(name, "hold finite numbers", value, index)
        floats.append(number)
    return floats


def one_or_many(name, values):
    """Returns a list of texts, and a function that unpacks the answer to a single text."""
    if isinstance(values, str) or getattr(values, "shape", None) == ():  # a tensor of one string
        return strings(name, [values]), lambda answers: answers[0]
    return strings(name, values), lambda answers: answers


def _as_list(name, values):
    is_table = any(hasattr(values, names) for names in ("columns", "column_names"))
    is_table |= isinstance(getattr(values, "element_spec", None), (tuple, dict))
    if is_table or isinstance(values, (str, bytes, dict)) or not hasattr(values, "__iter__"):
        raise bad_argument(name, "be a list or a column of values", values)
    if hasattr(values, "element_spec"):
        values = values.as_numpy_iterator()
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    plain = []
    for index, value in enumerate(values):
        try:
            plain.append(_plain(value))
        except UnicodeDecodeError:
            raise bad_argument(name, "hold text in UTF-8", value, index) from None
    return plain


def _integers(values):
    """Converts to int if every value is a canonical integer ("007" is not)."""
    are_integers = all(re.fullmatch("0|-?[1-9][0-9]*", value) for value in values)
    return [int(value) for value in values] if are_integers else values


def _without_gaps(name, column, values):
    """Returns a column of a table as a list. Raises ValueError if a row has no value."""
    values = _as_list(name, values)
    for index, value in enumerate(values):
        missing = isinstance(value, float) and math.isnan(value) or type(value).__name__ in ("NAType", "NaTType")
        if value is None or missing:
            where = f"the column {short_repr(column)}, row {index + 1} (the first of the data is 1)"
            raise ValueError(f"`{name}` must have a value in each row; received none in {where}.")
    return values


def _plain(value):
    """Returns a value of Python's own types: str for bytes, a list for an array."""
    if hasattr(value, "numpy"):  # a tensor of TensorFlow or PyTorch
        value = value.numpy()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.floating):  # the `item` of a longdouble is a longdouble
        return float(value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(inner) for inner in value]
    return value


def _table(argument, data, columns):
    """Returns a function from the name of a column to its values, or None if `data` is a column."""
    names = list(columns.values())
    if isinstance(data, (str, os.PathLike)):
        data = _read(argument, checks.path(argument, data), columns)
    if hasattr(data, "element_spec"):
        return _dataset(argument, data, names)
    # The names of a dict, of a data set of `datasets`, of a data frame of pandas.
    known = data if isinstance(data, dict) else getattr(data, "column_names", getattr(data, "columns", None))
    if known is None:
        return None

    check_names(argument, list(known), columns)
    return lambda name: data[name]


def check_names(argument, known, columns):
    """Raises ValueError if a table lacks a column of these names, or has it twice."""
    wanted = list(columns.values())
    missing = [name for name in wanted if name not in known]
    if missing:
        raise ValueError(
            f"`columns` must name columns of the table `{argument}`, {short_repr(known)} (of a file the first line), "
            f"for {_quoted(columns)}; received {short_repr(wanted)}, and there is no "
            f"{', '.join(map(short_repr, missing))}."
        )
    if any(known.count(name) > 1 for name in wanted):
        raise bad_argument(argument, f"be a table that has each column of {short_repr(wanted)} once", known)


def _quoted(names):
    return ", ".join(f"`{name}`" for name in names)


def _read(argument, path, columns):
    known = sorted([*SEPARATED, ".parquet", ".jsonl"] + ([".txt"] if len(columns) == 1 else []))
    suffix, shown = path.suffix.lower(), str(path)
    if path.is_dir():
        raise ValueError(
            f"`{argument}` must be data, or a file of {known}; received the folder {short_repr(shown)}. Read its "
            "files, such as [path.read_text() for path in pathlib.Path(folder).glob('*.txt')]."
        )
    if suffix not in known:
        raise bad_argument(argument, f"be data, or a file of {known}", shown)
    if not path.is_file():
        raise bad_argument(argument, "be a file that exists", shown)
    if suffix == ".txt":
        return {next(iter(columns.values())): _lines(path)}
    if suffix == ".jsonl":
        return _json_lines(path)
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise ImportError("Files of data need pandas: pip install 'keras_txf[tasks]'.") from error
    try:
        if suffix == ".parquet":
            return pandas.read_parquet(path)
        # "NA" and "null" are texts, and a text of digits is not a number.
        options = {**SEPARATED[suffix], "keep_default_na": False, "dtype": dict.fromkeys(columns.values(), str)}
        table = pandas.read_csv(path, **options)
        # pandas would rename the second of two columns with the same name.
        first = pandas.read_csv(path, **{**options, "dtype": str, "header": None, "nrows": 1})
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from error
    check_names(argument, first.iloc[0].tolist(), columns)
    if not isinstance(table.index, pandas.RangeIndex):  # pandas takes the first cells for an index
        raise ValueError(
            f"{short_repr(str(path))} must have as many cells in each row as the first line, {len(table.columns)}; "
            f"received {table.index.nlevels + len(table.columns)} in row 1 (the first of the data is 1): a cell with "
            "the separator in it needs quotation marks in a .csv file."
        )
    for column in columns.values():  # an empty cell is a missing value
        table[column] = table[column].where(table[column] != "")
    return table


def _lines(path):
    """Returns the lines of a file that are not blank."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (UnicodeError, OSError) as error:
        raise _unreadable(path, error) from error
    return [line for line in lines if line.strip()]


def _unreadable(path, error):
    """Returns the error, in one line, for a file that is not a table or not text."""
    advice = ". Save it as UTF-8, or read it yourself (`encoding='latin-1'`, 'cp1252', 'utf-16') and pass the columns"
    advice = advice if isinstance(error, UnicodeError) else ""
    return ValueError(f"{short_repr(str(path))} cannot be read: {' '.join(str(error).split())}{advice}.")


def _json_lines(path):
    """Returns the columns of a file of JSON lines. pandas would guess types: a text "1" would become a number."""
    rows = []
    for line in _lines(path):
        try:
            rows.append(parse_json(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{short_repr(str(path))} must have a JSON object in each line; received {short_repr(line)}: {error}."
            ) from error
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def _dataset(argument, data, columns):
    elements = list(data.as_numpy_iterator())
    if elements and isinstance(elements[0], dict):
        known = sorted(elements[0])
        if not set(columns) <= set(known):
            raise bad_argument("columns", f"name parts of the elements, {known}", columns)
        return lambda name: [element[name] for element in elements]
    elements = [element if isinstance(element, tuple) else (element,) for element in elements]
    if elements and len(elements[0]) != len(columns):
        raise ValueError(f"`{argument}` must have elements of {columns}; received {len(elements[0])} parts.")
    return lambda name: [element[columns.index(name)] for element in elements]
