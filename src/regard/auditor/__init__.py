"""Does a model, on a batch, read what it should? From inside, by its layers' masks, and from outside."""

from regard.auditor.callback import audit_callback as audit_callback
from regard.auditor.callback import lightning_callback as lightning_callback
from regard.auditor.model_audit import audit as audit
from regard.auditor.result import Audit as Audit
