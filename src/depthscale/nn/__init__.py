"""The looped language model. Importing this registers it with transformers' Auto classes.

Read ``placement.py`` first, then ``looped_lm.py``. The files of this folder import only torch, transformers and
each other, so that ``save_pretrained`` can put a copy of them beside the weights: such a checkpoint loads without
depthscale, where the user passes ``trust_remote_code=True``.
"""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from .config import LoopedLMConfig
from .looped_lm import LoopedLMForCausalLM, LoopedLMModel

__all__ = ["LoopedLMConfig", "LoopedLMForCausalLM", "LoopedLMModel"]

# exist_ok: a copy of this folder may be imported under another name in the same process.
AutoConfig.register(LoopedLMConfig.model_type, LoopedLMConfig, exist_ok=True)
AutoModel.register(LoopedLMConfig, LoopedLMModel, exist_ok=True)
AutoModelForCausalLM.register(LoopedLMConfig, LoopedLMForCausalLM, exist_ok=True)
LoopedLMConfig.register_for_auto_class()
LoopedLMModel.register_for_auto_class("AutoModel")
LoopedLMForCausalLM.register_for_auto_class("AutoModelForCausalLM")
