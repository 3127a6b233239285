"""Our models as transformers models. `import trc2.hf` makes them known to the Auto classes of transformers."""

from trc2.errors import UserError

try:
    from transformers import AutoConfig, AutoModelForCausalLM
except ModuleNotFoundError:
    raise UserError("trc2.hf needs transformers: install it with `pip install '.[hf]'` in the checkout.") from None

from trc2.hf.callback import MemoryCallback
from trc2.hf.configuration import TRC2PretrainedConfig
from trc2.hf.modeling import TRC2ForCausalLM

__all__ = ["MemoryCallback", "TRC2ForCausalLM", "TRC2PretrainedConfig"]

AutoConfig.register(TRC2PretrainedConfig.model_type, TRC2PretrainedConfig, exist_ok=True)
AutoModelForCausalLM.register(TRC2PretrainedConfig, TRC2ForCausalLM, exist_ok=True)
