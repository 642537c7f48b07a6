"""Small models of every model type: which classes there are, and how one is built with enlarged weights."""

import importlib
import inspect
import logging
from collections import OrderedDict

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from tests.against.transformers_survey.overrides import OVERRIDES
from tests.against.transformers_survey.sizes import small_values

PARAMETERS_AT_MOST = 20_000_000
SIZES = ((32, 8), (64, 8), (64, 4), (128, 16), (224, 16), (224, 32))  # side of a picture, side of a patch
# The base model comes first, then the first class of this list that the type has.
HEADS = (
    "CAUSAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
    "CTC",
    "TEXT_TO_SPECTROGRAM",
    "TEXT_TO_WAVEFORM",
    "OBJECT_DETECTION",
    "IMAGE_CLASSIFICATION",
    "PRETRAINING",
)

logging.getLogger("transformers").setLevel(logging.ERROR)


def model_types():
    """Every model type that the installed Transformers has a configuration for."""
    return sorted(CONFIG_MAPPING_NAMES)


def class_names(model_type, most=2):
    """The model classes of a type that are surveyed: its base model, its language model, or else another."""
    mappings = {
        name.removesuffix("_NAMES").removesuffix("_MAPPING"): value
        for name, value in vars(modeling_auto).items()
        if name.startswith("MODEL") and name.endswith("_NAMES") and isinstance(value, OrderedDict)
    }
    config_class = CONFIG_MAPPING[model_type]
    order = ["MODEL", *(f"MODEL_FOR_{head}" for head in HEADS), *sorted(mappings)]
    found = {}
    for key in order:
        names = mappings.get(key, {}).get(model_type, ())
        for name in (names,) if isinstance(names, str) else names:
            if _is_of(getattr(transformers, name, None), config_class):
                found[name] = None
    return list(found or dict.fromkeys(_classes_with(model_type)))[:most]


def _is_of(kind, config_class):
    """Whether a model class takes this configuration; one whose library is not installed may."""
    try:
        return kind is not None and getattr(kind, "config_class", None) in (config_class, None)
    except ImportError:
        return True


def _modeling(model_type):
    """The module that defines the models of a type, beside the one with its configuration."""
    folder, _, stem = CONFIG_MAPPING[model_type].__module__.rpartition(".configuration_")
    try:
        return importlib.import_module(f"{folder}.modeling_{stem}")
    except ImportError:
        return None


def _classes_with(model_type):
    """Model classes whose configuration is that of the type, in the module that defines them."""
    module = _modeling(model_type)
    if module is None:
        return []
    return [
        name
        for name, kind in vars(module).items()
        if inspect.isclass(kind)
        and issubclass(kind, transformers.PreTrainedModel)
        and kind.__module__ == module.__name__
        and kind.config_class is CONFIG_MAPPING[model_type]
        and "forward" in vars(kind)
    ]


def find_class(name, model_type):
    kind = getattr(transformers, name, None)
    return kind if kind is not None else getattr(_modeling(model_type), name)


def small_config(model_type, picture, patch):
    """A small configuration of a type, with every kind of layer that its default has."""
    config_class = CONFIG_MAPPING[model_type]
    extra = OVERRIDES.get(model_type, {})
    try:
        default = config_class()
    except Exception:
        default = config_class(**extra)
    return config_class(**_merged(small_values(default, picture, patch), extra))


def _merged(values, extra):
    """`extra` over `values`, sub-configurations field by field."""
    merged = dict(values)
    for name, value in extra.items():
        inner = merged.get(name)
        merged[name] = _merged(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return merged


def build(kind, config, spread=0.3):
    """A model in eval mode, float32, whose weights are large enough that its heads differ."""
    with torch.device("meta"):
        count = sum(p.numel() for p in kind(config).parameters())
    if count > PARAMETERS_AT_MOST:
        raise ValueError(f"still has {count / 1e6:.0f} million parameters when made small")
    torch.manual_seed(0)
    model = kind(config).eval()
    for settings in (model.config, getattr(model, "generation_config", None)):
        if settings is not None and getattr(settings, "decoder_start_token_id", 0) is None:
            settings.decoder_start_token_id = 3
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.dtype.is_floating_point:
                continue
            if parameter.ndim > 1:
                parameter.normal_(std=spread)
            elif not parameter.any():
                parameter.normal_(std=0.1)  # gates and biases that start at zero would hide what they gate
    return model
