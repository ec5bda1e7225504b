"""What is planned: a model on a cluster, or typed costs."""

from __future__ import annotations

import copy
import difflib
import functools
import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from . import _native
from ._errors import Fault, SpecError, _refused

#: Sections of a spec whose fields can be given by name alone: ``pipeline=8`` is ``parallel={"pipeline": 8}``.
_SECTIONS = ("parallel", "training", "cluster", "memory")


@functools.cache
def _section_of() -> dict[str, str]:
    """The section of each field, from the schema."""
    tables = json.loads(_native.schema())["$defs"]["spec"]["properties"]
    return {field: section for section in _SECTIONS for field in tables[section]["properties"]}


@functools.cache
def _top_fields() -> frozenset[str]:
    return frozenset(json.loads(_native.schema())["$defs"]["spec"]["properties"])


def _plain(value: Any, depth: int = 0) -> Any:
    """``value`` as JSON has it. A number that JSON has no word for becomes a text, so that it is refused by its field."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if depth > 64:
        raise _refused("the whole input", type(value).__name__, "tables and lists up to 64 deep, none of them within itself")
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a number of NumPy or torch
        return _plain(value.item())
    return str(value)


def _merged(into: dict, changes: Mapping) -> dict:
    """``into`` with ``changes``, table by table."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merged(into[key], value)
        else:
            into[key] = value
    return into


def _is_config(value: Any) -> bool:
    """Whether this is a model's configuration of ``transformers``."""
    return hasattr(value, "to_dict") and hasattr(value, "model_type")


def _is_megatron(value: Any) -> bool:
    """Whether these are arguments of Megatron-LM."""
    return hasattr(value, "num_layers") and hasattr(value, "hidden_size") and not hasattr(value, "to_dict")


def _config_file(path: str, folder: str) -> dict:
    path = os.path.join(folder, path)
    if os.path.isdir(path):
        path = os.path.join(path, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            return json.loads(file.read())
    except (OSError, ValueError) as error:
        raise SpecError(f"model.config: {path} cannot be read: {error}", [
            Fault("model.config", path, "the path of a model's config.json, from the spec's folder"),
        ]) from error


def _megatron_text(arguments: Any) -> str:
    """The arguments as a log of Megatron-LM prints them, which the planner reads."""
    lines = [f"  {name} {'.' * max(3, 48 - len(name))} {value}" for name, value in vars(arguments).items()]
    return "\n".join(lines)


_SOURCES = "a dict, a text in TOML or JSON, a path, a link, a config of transformers or arguments of Megatron-LM"


def _table(source: Any) -> tuple[dict | str, str]:
    """``source`` as a table, or as a text that the planner alone reads; and the folder for paths in it."""
    if isinstance(source, Mapping):
        return _plain(source), "."
    if isinstance(source, os.PathLike) or (isinstance(source, str) and _is_path(source)):
        try:
            with open(source, encoding="utf-8") as file:
                return _read(file.read()), os.path.dirname(os.path.abspath(source))
        except (IsADirectoryError, UnicodeDecodeError) as error:
            raise _refused("the whole input", os.fspath(source), "the path of a text in TOML or JSON") from error
    if isinstance(source, (bytes, bytearray)):
        try:
            source = bytes(source).decode("utf-8")
        except UnicodeDecodeError as error:
            raise _refused("the whole input", bytes(source), _SOURCES) from error
    if isinstance(source, str):
        # No spec, and no part of one, is a lone word.
        if source.strip() and not re.search(r"[\n={\[#]", source) and not _native.is_link(source):
            raise _refused("the whole input", source, f"{_SOURCES}; there is no file of this name")
        return _read(source), "."
    raise _refused("the whole input", type(source).__name__, _SOURCES)


def _is_path(text: str) -> bool:
    return len(text) < 4096 and "\n" not in text and "{" not in text and os.path.exists(text)


def _read(text: str) -> dict | str:
    """A table, or the text itself where it is a link or a plan file."""
    if _native.is_link(text):
        return text
    table = json.loads(_native.parse(text))
    return text if table.get("format") == "pipeplan-plan" else table


class Spec:
    """What is to be planned, with every default filled in.

    Parameters
    ----------
    source
        A dict of the fields of a spec; a text in TOML or JSON; a path; a link of the planner's page; the configuration of a
        model of ``transformers`` (``AutoConfig``); or the arguments of Megatron-LM (``argparse.Namespace``), which also need
        ``device``.
    **fields
        Fields of the spec, which stand before those of ``source``. A section as a dict
        (``parallel={"pipeline": 8}``), or its fields alone (``pipeline=8``). ``model`` may be a name of the catalog, a dict of
        sizes, or a configuration of ``transformers``.

    Units are those of files: times in ns, memory in bytes (or text such as ``"80 GiB"``), ``microbatch_size`` in sequences,
    ``sequence`` in tokens. https://docs.rs/pipeplan-core names all fields.

    Raises
    ------
    SpecError
        With all faults, each with its field.

    Examples
    --------
    >>> import pipeplan
    >>> spec = pipeplan.Spec(model="llama-2-7b", device="h100", pipeline=8, microbatches=32)
    >>> spec["parallel"]["pipeline"]
    8
    """

    #: What a run of Megatron-LM says otherwise than a spec can, where this comes from one.
    notes: list[str]

    def __init__(self, source: Any = None, /, **fields: Any) -> None:
        self.notes = []
        if isinstance(source, Spec):
            self.notes = list(source.notes)
            table: dict | str = copy.deepcopy(source._value)
        elif source is None:
            table = {}
        elif _is_config(source):
            table = {"model": {"config": _plain(source.to_dict())}}
        elif _is_megatron(source):
            table = self._from_megatron(source, fields)
        else:
            table, folder = _table(source)
            if isinstance(table, dict):
                self._read_config(table, folder)
        if isinstance(table, str):
            table = json.loads(_native.read_spec(table)) if fields else table
        if isinstance(table, dict):
            changes = _by_section(fields)
            for key in ("model", "problem"):  # one or the other, and a model as a whole
                if key in changes:
                    table.pop("problem", None)
                    table.pop("model", None)
            if "microbatches" in changes.get("training", {}):
                table.get("training", {}).pop("global_batch_size", None)
            if "global_batch_size" in changes.get("training", {}):
                table.get("training", {}).pop("microbatches", None)
            table = json.dumps(_merged(table, changes))
        self._value: dict = json.loads(_native.read_spec(table))

    def _from_megatron(self, arguments: Any, fields: dict) -> dict:
        device = fields.pop("device", None)
        if not isinstance(device, str):
            raise SpecError("device: found nothing, accepted is a device of the catalog, such as h100", [
                Fault("device", "nothing", "a device of the catalog, such as h100: arguments of Megatron-LM do not name it"),
            ])
        imported = json.loads(_native.import_run(_megatron_text(arguments), device, fields.pop("devices", None), {}, None, None))
        self.notes = imported["notes"]
        return imported["spec"]

    @staticmethod
    def _read_config(table: dict, folder: str) -> None:
        if "model_type" in table and "model" not in table:  # the content of a config.json
            config = dict(table)
            table.clear()
            table["model"] = {"config": config}
        model = table.get("model")
        if isinstance(model, dict) and isinstance(model.get("config"), str):
            model["config"] = _config_file(model["config"], folder)

    @property
    def name(self) -> str:
        """A name for people; may be empty."""
        return self._value.get("name", "")

    @property
    def schedule(self) -> str:
        """The schedule that is planned where none is named: ``best`` or a published one."""
        return self._value["schedule"]

    @property
    def is_typed(self) -> bool:
        """Whether costs are typed, in the place of a model."""
        return "problem" in self._value

    @property
    def ranks(self) -> int:
        """Pipeline ranks, P."""
        return self._value["problem"]["ranks"] if self.is_typed else self._value["parallel"]["pipeline"]

    @property
    def chunks(self) -> int:
        """Virtual stages per rank, V, for schedules that may choose."""
        return self._value["problem"].get("chunks", 1) if self.is_typed else self._value["parallel"]["chunks"]

    @property
    def microbatches(self) -> int:
        """Microbatches of a step, M."""
        return self._value["problem" if self.is_typed else "training"]["microbatches"]

    def replace(self, **fields: Any) -> Spec:
        """The spec with other ``fields``, named as those of :class:`Spec`."""
        return Spec(self, **fields)

    def link(self, page: str = "") -> str:
        """The link that the planner's page at the address ``page`` opens."""
        return _native.link(self.to_json(), page)

    def bound(self) -> dict:
        """What no schedule costs less than: ``bound_ns``, and ``placements`` with a reason for each."""
        return json.loads(_native.bound(self.to_json()))

    def to_dict(self) -> dict:
        """Every field with its value, defaults included."""
        return copy.deepcopy(self._value)

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self._value)

    def __getitem__(self, section: str) -> Any:
        return copy.deepcopy(self._value[section])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and self._value == other._value

    def __hash__(self) -> int:
        return hash(json.dumps(self._value, sort_keys=True))

    def __repr__(self) -> str:
        work = "typed costs" if self.is_typed else (self._value["model"].get("name") or "a model")
        name = f"{self.name!r}, " if self.name else ""
        return f"Spec({name}{work}, {self.ranks} ranks, {self.microbatches} microbatches, schedule={self.schedule!r})"


def _by_section(fields: Mapping[str, Any]) -> dict:
    """Keyword fields as the tables of a spec."""
    changes: dict = {}
    faults = []
    hints = []
    for field, value in fields.items():
        if field == "model" and isinstance(value, str):
            value = {"name": value}
        elif field == "model" and _is_config(value):
            value = {"config": _plain(value.to_dict())}
        elif field == "model" and isinstance(value, Mapping) and "model_type" in value:
            value = {"config": value}
        if field in _top_fields():
            changes.setdefault(field, {})
            changes[field] = _merged(changes[field], _plain(value)) if isinstance(value, Mapping) else _plain(value)
        elif field in _section_of():
            changes.setdefault(_section_of()[field], {})[field] = _plain(value)
        else:
            known = sorted(_top_fields() | set(_section_of()))
            near = difflib.get_close_matches(field, known, 3)
            perhaps = f" (perhaps {' or '.join(near)})" if near else ""
            hints.append(perhaps)
            faults.append(Fault(field, str(value)[:60], f"one of the fields {', '.join(known)}{perhaps}"))
    if faults:
        raise SpecError("\n".join(f"{fault.field}: no field of a spec has this name{hint}; accepted is {fault.accepted}"
                                  for fault, hint in zip(faults, hints)), faults)
    return changes


def _spec_text(spec: Any) -> str:
    """``spec`` as the planner reads it, made of whatever :class:`Spec` takes."""
    from ._results import Plan  # a plan stands for its spec

    if isinstance(spec, Plan):
        return spec.text
    return (spec if isinstance(spec, Spec) else Spec(spec)).to_json()
