"""Does a model, on a batch, read what it should? From inside, by its layers' masks, and from outside."""

from regard.auditor.callback import audit_callback, lightning_callback
from regard.auditor.model_audit import audit
from regard.auditor.result import Audit

__all__ = ["Audit", "audit", "audit_callback", "lightning_callback"]
